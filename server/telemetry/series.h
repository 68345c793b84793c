// The recent past of jobs, in memory: what /metrics shows.
//
// Of a job that runs the latest values are kept, and what its metrics are made of; of one that has
// never had devices the time since which it waits; of those that have ended the latest. So it is
// small beside the jobs themselves, however many there are.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/jobs/clock.h"
#include "server/jobs/job_table.h"

namespace tessera::server {

struct JobSeries {
  // Id, the spec's name, state, attempts, restarts, time of creation, the rehearsed and the
  // measured peak: no more of it.
  v1::Job job;
  std::optional<v1::StepMetrics> step;       // the latest
  std::map<int, v1::MemorySnapshot> memory;  // the latest, by rank
  // When it went to its state, and when a step, an evaluation, a checkpoint or completions last
  // came of it. absl::InfinitePast(): not known.
  absl::Time state_time = absl::InfinitePast();
  absl::Time progress_time = absl::InfinitePast();

  void update(const v1::Job& job);
  void add(const v1::Event& event);
};

// Thread safe.
class Telemetry {
 public:
  explicit Telemetry(const Clock& clock) : clock_(clock) {}

  // An unfinished job whose past is known from the store, as after a restart; of one that has had
  // no attempt no events are needed.
  void restore(const v1::Job& job, const std::vector<v1::Event>& events);

  // What a transaction changed.
  void record(const std::vector<JobChange>& changes);

  // Unfinished jobs that have had devices, and those that ended not long ago.
  std::vector<JobSeries> recent();

  // Since when the queued job that waits longest has waited; InfiniteFuture(): the queue is empty.
  absl::Time oldest_queued();

 private:
  // These require mutex_ held.
  void note(const v1::Job& job, const std::vector<v1::Event>& events);
  void forget_old();

  const Clock& clock_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<std::string, JobSeries> series_;                 // by job id
  std::map<std::string, absl::Time> waiting_;               // never had devices; by job id
  std::set<std::pair<absl::Duration, std::string>> ended_;  // on Clock::uptime()
};

}  // namespace tessera::server
