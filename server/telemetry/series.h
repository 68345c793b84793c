// The recent past of jobs, in memory: what /metrics shows.
//
// Bounded in every direction: values a job, and jobs that have ended.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "server/jobs/clock.h"
#include "server/jobs/job_table.h"

namespace tessera::server {

// Length of the ring.
inline constexpr size_t kMaxSeriesSteps = 512;

struct JobSeries {
  v1::Job job;
  std::deque<v1::StepMetrics> steps;
  std::map<int, v1::MemorySnapshot> memory;  // the latest, by rank
  // When it went to its state, and when a step, an evaluation, a checkpoint or completions last
  // came of it. absl::InfinitePast(): not known.
  absl::Time state_time = absl::InfinitePast();
  absl::Time progress_time = absl::InfinitePast();

  void add(const v1::Event& event);
};

// Thread safe.
class Telemetry {
 public:
  explicit Telemetry(const Clock& clock) : clock_(clock) {}

  // A job whose past is known from the store, as after a restart.
  void restore(const v1::Job& job, const std::vector<v1::Event>& events);

  // What a transaction changed.
  void record(const std::vector<JobChange>& changes);

  // Unfinished jobs, and those that ended not long ago.
  std::vector<JobSeries> recent();

 private:
  struct Entry {
    JobSeries series;
    absl::Duration ended = absl::InfiniteDuration();  // on Clock::uptime()
  };
  void forget_old();  // requires mutex_ held

  const Clock& clock_;
  std::mutex mutex_;
  std::map<std::string, Entry> entries_;  // by job id; guarded by mutex_
};

}  // namespace tessera::server
