// What the service has done since its start, and how it is itself, for Prometheus.
//
// Labels are enums only, and each series is there from the start with 0: the first failure of a
// kind is an increase that an alert can see.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "server/jobs/clock.h"
#include "server/jobs/job_table.h"

namespace tessera::server {

// Thread safe, but for time_round() and record(), which belong to the control loop's thread.
class ServiceMetrics {
 public:
  // `state_dir`: the directory whose disk is watched.
  ServiceMetrics(const Clock& clock, std::filesystem::path state_dir);

  // What a transaction changed.
  void record(const std::vector<JobChange>& changes);

  // Runs the end of a round of the control loop: what it places, writes and commits. Its time is
  // taken where record() is called meanwhile with a change; an idle round says nothing of a disk.
  void time_round(const std::function<void()>& round);

  // Whether changes are taken: not while the disk of the state is full, or fails.
  void set_writable(bool is_writable) { is_writable_ = is_writable; }

  std::vector<prometheus::MetricFamily> collect() const;

 private:
  void count(const v1::StateChange& change);

  const Clock& clock_;
  const std::filesystem::path state_dir_;
  const absl::Time start_;
  bool changed_ = false;  // in this round
  std::atomic<bool> is_writable_{true};
  prometheus::Registry registry_;
  prometheus::Counter& submitted_;
  prometheus::Counter& attempts_;
  prometheus::Family<prometheus::Counter>& ended_;
  prometheus::Family<prometheus::Counter>& restarts_;
  prometheus::Histogram& commit_seconds_;
};

// The label of a kind of failure, as in "memory"; empty for none.
std::string failure_label(v1::Failure::Kind kind);

// The label of a state, as in "running".
std::string state_label(v1::Job::State state);

}  // namespace tessera::server
