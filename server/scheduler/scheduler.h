// Which queued jobs start now, and on which devices. A pure function: no I/O, no clock of its own.
//
// Gangs are all or nothing. The queue is in order of priority, then submission. A job that has to
// wait keeps every later one that wants the same kind of device waiting too, so that large gangs do
// not starve; a job that the present nodes could never hold, or that may not start yet, holds up
// nobody.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tessera/v1/coordinator.pb.h"

namespace tessera::server {

struct DeviceView {
  int index = 0;
  std::string kind;
  bool free = true;
};

// A node that can take work.
struct NodeView {
  std::string name;
  std::vector<DeviceView> devices;
};

struct QueuedJob {
  std::string id;
  std::string kind;
  int num_devices = 0;
  int priority = 0;
  // Order of submission.
  int64_t number = 0;
  // On the caller's clock. A job that failed waits a while before the next attempt.
  absl::Duration not_before;
};

struct Decision {
  std::string id;
  // One a rank, in order of rank. Empty: the job waits.
  std::vector<v1::Placement> placements;
  // What it waits for.
  std::string reason;
};

// One decision a job, in order of the queue. A gang is on as few nodes as can be, on the fullest
// nodes that hold it, on neighbouring devices where there are some; ranks that follow each other
// are neighbours.
std::vector<Decision> schedule(std::vector<NodeView> nodes, std::vector<QueuedJob> queue,
                               absl::Duration now);

}  // namespace tessera::server
