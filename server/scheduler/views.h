// What the scheduler is told of nodes and jobs, and what it answers. Times are on the caller's
// clock (Clock::uptime()).
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"

namespace tessera::server {

struct DeviceView {
  int index = 0;
  std::string kind;
  std::string model;
  // Bytes that tensors may take. Those of cpu devices are their node's together. 0: not known.
  int64_t memory_bytes = 0;
};

// A node that can take work.
struct NodeView {
  std::string name;
  // Nodes of one rack are near each other. Empty: not known.
  std::string rack;
  std::vector<DeviceView> devices;
};

struct Spot {
  std::string node;
  int device = 0;
  auto operator<=>(const Spot&) const = default;
};

// Which devices a rank may be on.
struct Demand {
  std::string kind;
  // In lower case; part of the device's model. Empty: any.
  std::string model;
  // That a rank takes. 0: not known.
  int64_t bytes_per_rank = 0;
  auto operator<=>(const Demand&) const = default;
};

// A number of ranks that a job can run with.
struct GangSize {
  int num_devices = 0;
  int64_t bytes_per_rank = 0;
  auto operator<=>(const GangSize&) const = default;
};

struct QueuedJob {
  std::string id;
  // Order of submission; names the job.
  int64_t number = 0;
  std::string project;
  int priority = 0;
  std::string kind;
  // As Demand::model.
  std::string model;
  // The one that is wanted first, then smaller ones. Not empty.
  std::vector<GangSize> sizes;
  // A job that failed waits a while before the next attempt.
  absl::Duration not_before;
  // From its start, after which its devices are free in any case.
  absl::Duration longest = absl::InfiniteDuration();
};

// A job that holds devices.
struct RunningJob {
  std::string id;
  int64_t number = 0;
  std::string project;
  int priority = 0;
  std::string kind;
  // One a rank.
  std::vector<Spot> spots;
  int64_t bytes_per_rank = 0;
  bool preemptible = false;
  // It is being stopped already.
  bool ending = false;
  absl::Duration began;
  // When its devices are free in any case.
  absl::Duration ends_by = absl::InfiniteDuration();
  // From being told to stop, after which they are.
  absl::Duration stop_time;
};

// A queued job that starts now.
struct JobStart {
  int64_t number = 0;
  // One a rank, in order of rank; as many as one of its sizes.
  std::vector<Spot> spots;
};

// A running job that is to be stopped, so that another one can start.
struct Preemption {
  int64_t victim = 0;
  int64_t by = 0;
};

struct Decisions {
  std::vector<JobStart> starts;
  std::vector<Preemption> preemptions;
};

// Why a queued job waits.
struct Waiting {
  int64_t number = 0;
  std::string reason;
  // It starts by then, unless jobs that go before it come or nodes go. InfiniteDuration(): not
  // known.
  absl::Duration start_by = absl::InfiniteDuration();
};

}  // namespace tessera::server
