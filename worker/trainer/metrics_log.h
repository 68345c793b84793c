// What a job told of its steps and evaluations, as its checkpoints keep it: an attempt that was cut
// off from the coordinator took steps, and saved, that nobody heard of, and the one that goes on
// from there tells them in its place.
#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/v1/trainer.pb.h"

namespace tessera {

inline constexpr char kMetricsLogFile[] = "metrics.pb";

// Not thread safe.
class MetricsLog {
 public:
  // The latest events that fit into this are kept.
  static constexpr size_t kMaxBytes = 1 << 20;

  // `event` has its time.
  void add(const v1::TrainerEvent& event);
  // All of it, as the file has it: varint-delimited messages, oldest first.
  std::string bytes() const;

  // Goes on from a checkpoint, which may have no such file, and gives the events that are in it. A
  // file that is none ends where it stops to be one: metrics are no reason not to go on.
  std::vector<v1::TrainerEvent> take_up(const std::filesystem::path& checkpoint);

 private:
  std::deque<std::string> events_;  // encoded
  size_t num_bytes_ = 0;
};

}  // namespace tessera
