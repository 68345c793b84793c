// What a job's events look like to a person. Pure: events in, text out.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/v1/coordinator.pb.h"

namespace tessera::cli {

// Keeps what a progress line and the closing summary need of a job's events.
class Progress {
 public:
  void add(const v1::Event& event);

  // "step 12/200  loss 4.321  ..." of the latest step. Empty before the first.
  std::string line() const;

  // Bytes by owner, now and at the peak, of the rank with the highest peak. After a lack of memory:
  // what was held then. Empty where neither is known.
  std::vector<std::string> memory_table() const;

  // The job's state, as far as its events have told.
  v1::Job::State state() const { return change_.state(); }
  const v1::StateChange& change() const { return change_; }

 private:
  void add_step(const v1::StepMetrics& step);
  // At the pace of the recent steps. Requires: a step.
  double remaining_seconds() const;

  v1::StepMetrics step_;
  v1::StateChange change_;
  std::map<int32_t, v1::MemorySnapshot> memory_;
  std::optional<int32_t> straggler_;
  // Wall time of the recent steps.
  std::deque<double> recent_seconds_;
};

// One line on an event that is no step: a state, a checkpoint, an evaluation, a log line, what is
// waited for, a trace, a straggler. Empty for others.
std::string describe_event(const v1::Event& event);

}  // namespace tessera::cli
