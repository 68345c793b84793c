// Values of many names over the steps of a job, in a bounded number of buckets.
//
// A bucket holds as many events as any other, one at first. When there are too many buckets,
// neighbours are put together and each holds twice as many from then on: a million steps cost as
// much as two thousand. Means stay means of events, and sums of means stay means of sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "telemetry/history.pb.h"

namespace tessera::server {

class ThinSeries {
 public:
  using Values = std::vector<std::pair<std::string, double>>;

  // Requires: max_buckets is even and at least 2. Names beyond max_columns are left out.
  ThinSeries(size_t max_buckets, size_t max_columns)
      : max_buckets_(max_buckets), max_columns_(max_columns) {}

  // One event. A step below the last one says that the job went back to a checkpoint: what was
  // there from that step on is forgotten. A value that is not finite is none.
  void add(int32_t step, double seconds, const Values& values);

  size_t num_buckets() const { return buckets_.size(); }
  // Puts buckets together until at most max_points are left. Requires: max_points > 0.
  ThinnedSeries render(size_t max_points) const;

 private:
  struct Bucket {
    int32_t first_step = 0;
    int32_t last_step = 0;
    double seconds = 0;
    uint32_t num_events = 0;
  };
  struct Cell {
    double sum = 0;
    float min = 0;
    float max = 0;
    uint32_t count = 0;

    void add(double value);
    void merge(const Cell& other);
  };

  void rewind(int32_t step);
  void halve();
  static void merge(Bucket& into, const Bucket& from);
  // Entry i is of buckets [i * factor, (i + 1) * factor).
  static std::vector<Cell> grouped(const std::vector<Cell>& cells, size_t factor);

  const size_t max_buckets_;
  const size_t max_columns_;
  uint32_t events_a_bucket_ = 1;
  std::vector<Bucket> buckets_;
  std::map<std::string, std::vector<Cell>> columns_;  // as long as buckets_, each
};

}  // namespace tessera::server
