// A cluster's scheduler (Slurm, Kubernetes) that is asked for machines, as the coordinator sees it.
//
// What is asked for is an allocation: so many machines at the same time, each with an agent of this
// service on it that joins under the allocation's name. A name is used once, ever, so that an
// allocation is found again by it whatever answer got lost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::server {

struct LaunchRequest {
  // Letters, digits and '-'; at most kMaxAllocationName.
  std::string name;
  // For people who look at the cluster: letters, digits, '-', '_' and '.'.
  std::string job_id;
  int min_nodes = 1;
  int max_nodes = 1;
  int devices_per_node = 1;
  // "cpu" or "cuda".
  std::string device;
  // After which the cluster may end it. InfiniteDuration(): no bound.
  absl::Duration time_limit = absl::InfiniteDuration();
};

// Room for "-INDEX" within the 63 characters of a pod's host name.
inline constexpr size_t kMaxAllocationName = 52;

struct ClusterJob {
  enum class State { kPending, kRunning, kEnding, kEnded };
  std::string name;
  // The cluster's own.
  std::string id;
  State state = State::kPending;
  // Machines that it has, while it runs.
  int num_nodes = 0;
  // The cluster's words for where it stands, as in "PENDING (Resources)".
  std::string reason;
};

// Calls block, for kCallTimeout at most, and come from one thread.
class Launcher {
 public:
  static constexpr absl::Duration kCallTimeout = absl::Seconds(20);

  virtual ~Launcher() = default;

  // As in resources.launcher.
  virtual std::string kind() const = 0;
  // Most devices of one machine that a job gets.
  virtual int max_devices_per_node() const = 0;

  // The id of the allocation of that name, which is made only where there is none. UNAVAILABLE: it
  // may have been made or not, and the call is to be made again. FAILED_PRECONDITION: the cluster
  // will never take it.
  virtual absl::StatusOr<std::string> submit(const LaunchRequest& request) = 0;

  // All allocations of this coordinator that the cluster knows of, in the order in which they came;
  // those that ended may be missing.
  virtual absl::StatusOr<std::vector<ClusterJob>> list() = 0;

  // Whether no process of an ended allocation can be left on any machine.
  virtual absl::StatusOr<bool> is_gone(const ClusterJob& job) = 0;

  // Ends an allocation, if it has not ended, and deletes what was made for it.
  virtual absl::Status remove(const ClusterJob& job) = 0;
};

// Lets the agents of allocations in. Thread safe.
class Enrolment {
 public:
  virtual ~Enrolment() = default;

  // Where agents reach the coordinator, as for their --coordinator.
  virtual std::string coordinator() const = 0;
  // What tokens are for: agents know the coordinator by its authority, in PEM. Empty: agents
  // connect without TLS and need no tokens.
  virtual absl::StatusOr<std::string> authority() const = 0;
  // A token for each of the allocation's nodes.
  virtual absl::StatusOr<std::vector<std::string>> tokens(const std::string& allocation,
                                                          int num_nodes) = 0;
  // Ends the tokens, and the certificates that were given for them.
  virtual void revoke(const std::string& allocation) = 0;
};

// The node of an allocation's agent.
std::string node_of_allocation(const std::string& allocation, int index);

}  // namespace tessera::server
