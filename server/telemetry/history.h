// What the dashboard draws of one job, made of its events in order and bounded whatever their
// number.
#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "server/telemetry/thin_series.h"
#include "tessera/v1/coordinator.pb.h"

namespace tessera::server {

// Buckets of a series of steps, and so the most points that can be asked for.
inline constexpr size_t kMaxHistoryPoints = 2048;

// Not thread safe.
class History {
 public:
  // Requires: revisions grow.
  void add(const v1::Event& event);

  // The revision of the last event. 0: there was none.
  int64_t revision() const { return revision_; }

  // At most `max_points` buckets a series; memory over time of `rank` alone. Requires: max_points >
  // 0.
  JobHistory render(size_t max_points, int rank) const;

 private:
  struct Rank {
    ThinSeries memory;
    v1::Event last;
  };

  void add_step(const v1::Event& event);
  void add_eval(const v1::Event& event);
  void add_memory(const v1::Event& event);

  int64_t revision_ = 0;
  // Of the last memory event.
  int attempt_ = 0;
  ThinSeries steps_{kMaxHistoryPoints, 96};
  ThinSeries evals_{512, 96};
  std::map<int, Rank> ranks_;
  std::map<int, v1::Event> memory_peaks_;
  std::deque<v1::Event> milestones_;
  std::deque<v1::Event> checkpoints_;
  std::deque<v1::Event> generations_;
  std::deque<v1::Event> log_;
  std::deque<v1::Event> traces_;
  std::map<int, v1::Event> collectives_;
  int collectives_attempt_ = 0;  // of the last one
};

}  // namespace tessera::server
