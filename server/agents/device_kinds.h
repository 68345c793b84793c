// What devices there are, kind by kind, and which of them a job fits on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/agents/nodes.h"
#include "tessera/v1/coordinator.pb.h"

namespace tessera::server {

// Of connected nodes; memory_bytes is a device's own, of a CPU all the machine's.
std::vector<v1::DeviceFit> device_kinds(const Nodes& nodes);

// Bytes of tensors that a rank of the job may hold: resources.device_memory, else the most that a
// GPU of a connected node has for tensors. 0: not known.
int64_t known_device_memory(const v1::JobSpec& spec, const Nodes& nodes);

// The same for a planner that needs some bound: of a CPU without one, the largest machine's memory,
// dealt out to all ranks.
int64_t device_memory_to_plan_for(const v1::JobSpec& spec, const Nodes& nodes);

// What peaks on the job's devices are remembered under: cpu, or the model of the GPU with the most
// memory, as its driver names it.
std::string device_of_job(const v1::JobSpec& spec, const Nodes& nodes);

// Says of each kind why a job that was rehearsed so cannot run there.
void find_obstacles(const v1::Rehearsal& job, std::vector<v1::DeviceFit>& kinds);

}  // namespace tessera::server
