// Keeps the scheduler told of nodes, jobs and projects, and carries out what it decides.
//
// Belongs to the control loop's thread. What projects were given and what they had of the devices
// is in the store.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/agents/gangs.h"
#include "server/agents/nodes.h"
#include "server/jobs/job_table.h"
#include "server/scheduler/scheduler.h"

namespace tessera::server {

class Dispatch {
 public:
  Dispatch(JobTable& jobs, Nodes& nodes, Gangs& gangs, Store& store, const Clock& clock,
           absl::Duration fair_share_half_life);

  // One round: starts jobs, and stops those that make room. Tells new jobs why they wait, and with
  // `explain` the first kMaxExplained of the queue.
  void place(bool explain);

  // A job is queued: its project's quota counts it from now on.
  void submitted(const JobRecord& record) { sync(record); }

  // Whether the project may have one job more in the queue. RESOURCE_EXHAUSTED.
  absl::Status may_queue(const std::string& project) const;

  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
  absl::StatusOr<v1::Project> set_project(const v1::Project& project);
  std::vector<v1::Project> projects() const;
  v1::ListQueueResponse queue(size_t limit) const;
  // What projects hold, and may.
  const FairShare& shares() const { return scheduler_.shares(); }

 private:
  // Tells the scheduler what became of a job since it was last told.
  void sync(const JobRecord& record);
  void sync_changes();
  QueuedJob queued(const JobRecord& record) const;
  RunningJob running(const JobRecord& record) const;
  v1::QueueEntry entry_of(const JobRecord& record) const;
  void explain(int64_t number);
  void save_projects();
  v1::Project describe(const std::string& name) const;

  JobTable& jobs_;
  Nodes& nodes_;
  Gangs& gangs_;
  Store& store_;
  const Clock& clock_;
  Scheduler scheduler_;
  // What the scheduler was told last: state and attempt.
  std::map<int64_t, std::pair<v1::Job::State, int>> told_;
  std::map<std::string, v1::Project> projects_;  // as set, or with defaults
  std::map<std::string, int> num_queued_;        // by project
  // Projects whose holdings changed since they were saved.
  std::set<std::string> unsaved_;
  // Queued jobs whose watchers were told what they wait for.
  std::set<int64_t> explained_;
  // Queued jobs that a cluster's scheduler places, not ours (server/launchers/).
  std::set<int64_t> launched_;
};

}  // namespace tessera::server
