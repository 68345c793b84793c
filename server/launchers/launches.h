// Jobs that a cluster's scheduler places (resources.launcher): keeps an allocation for each that
// wants to run, starts its gang once the allocation's agents are there, and gives allocations back.
//
// Belongs to the control loop's thread; the cluster's programs and API are called on LaunchThreads.
// What is wanted is in the JobRecords. What the cluster has is asked again and again, all of it at
// once, and the difference is acted upon:
//
//   wanted, never answered        submitted again; the launcher looks for the name first
//   wanted, ended                 its job is started again with another, and that counts as a
//   restart not wanted                    ended and deleted
//
// So nothing is lost with an answer, or with the coordinator. A gang starts on agents of the stored
// allocation alone, and an allocation is replaced only once no process of the gang can be left.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/agents/gangs.h"
#include "server/agents/nodes.h"
#include "server/jobs/job_table.h"
#include "server/launchers/launch_thread.h"
#include "server/scheduler/fair_share.h"

namespace tessera::server {

struct LaunchOptions {
  // In the names of allocations: tells them from those of another coordinator. Lower case letters
  // and digits.
  std::string owner = "0";
  // Between questions to a cluster.
  absl::Duration poll = absl::Seconds(5);
  // From the time at which the cluster gave machines until all agents have joined; and what agents
  // get to come back in.
  absl::Duration join_timeout = absl::Minutes(5);
};

class Launches {
 public:
  Launches(JobTable& jobs, Nodes& nodes, Gangs& gangs, const Clock& clock, AfterCommit after_commit,
           LaunchOptions options);

  // Before anything else. Jobs may name this launcher from now on.
  void add(std::shared_ptr<LaunchThread> launcher);

  // Whether a job's launcher is one that is there, and can do what the job asks for.
  // INVALID_ARGUMENT.
  absl::Status check(const v1::JobSpec& spec) const;

  // Whether the agent may open a session: its allocation, if it has one, is wanted.
  // PERMISSION_DENIED.
  absl::Status admit(const v1::Hello& hello);

  // The node's session has ended.
  void closed(const std::string& node);

  // Jobs that changed in this round, before it is committed.
  void sync(const std::vector<JobRecord*>& changed);
  // What time brings: questions, submissions, starts. `shares` bounds what projects take.
  void tick(const FairShare& shares);
  // Starts the gangs whose agents are all there.
  void start();

 private:
  struct Cluster {
    std::shared_ptr<LaunchThread> launcher;
    bool is_asked = false;
    absl::Duration next_question;
    // Why it did not answer last; empty: it did.
    std::string trouble;
  };
  // Of an allocation that is wanted. What must survive is in the record.
  struct Watched {
    int64_t number = 0;
    // A call about it is under way.
    bool is_called = false;
    absl::Duration next_submit;
    absl::Duration submit_pause;
    // As the cluster told last.
    std::optional<ClusterJob> seen;
    // Since when it runs without all of its agents.
    std::optional<absl::Duration> incomplete_since;
  };

  JobRecord* record_of(const std::string& name);
  bool wants_allocation(const JobRecord& record) const;
  // Devices that allocations without a gang were asked for with, by project.
  std::map<std::string, int> devices_asked_for() const;
  void allocate(JobRecord& record, const FairShare& shares, int asked_for);
  LaunchRequest request_of(const JobRecord& record) const;
  void submit(const std::string& name);
  void submitted(const std::string& name, const absl::StatusOr<std::string>& id);
  void ask(Cluster& cluster);
  void listed(Cluster& cluster, const absl::StatusOr<std::vector<ClusterJob>>& jobs);
  void seen(Watched& watched, const std::string& name, const ClusterJob* job);
  void remove_unwanted(Cluster& cluster, const ClusterJob& job);
  // Allocations whose agents ended the ranks go as soon as no rank is left, before anything else is
  // started on them: their machines may be there for a while yet.
  void drop_evicted();
  // The cluster ended it, or never gave it.
  void lost(const std::string& name, const ClusterJob& job);
  void check_agents(Watched& watched, JobRecord& record);
  // The job goes on without it.
  void drop(JobRecord& record, const std::string& why);
  void leave(const Allocation& allocation, const std::string& why);
  // The allocation's agents, by index; those that are connected.
  std::vector<const Node*> agents(const Allocation& allocation) const;
  void explain(JobRecord& record, const std::string& reason);

  JobTable& jobs_;
  Nodes& nodes_;
  Gangs& gangs_;
  const Clock& clock_;
  const AfterCommit after_commit_;
  const LaunchOptions options_;
  const std::string prefix_;
  std::map<std::string, Cluster> clusters_;  // by kind
  // Unfinished jobs of clusters.
  std::set<int64_t> numbers_;
  std::map<std::string, Watched> watched_;  // by name
  // Names of those whose agents ended what ran on them.
  std::set<std::string> evicted_;
  // Until when agents that were told to leave are given time to.
  std::map<std::string, absl::Duration> leaving_;
  // Ended allocations that nothing is left of, by name; as long as the cluster names them.
  std::set<std::string> cleared_;
};

// Whether a cluster's scheduler places the job; not ours.
bool is_launched(const v1::JobSpec& spec);

}  // namespace tessera::server
