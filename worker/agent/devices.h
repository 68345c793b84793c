// The devices this machine offers to jobs.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "tessera/v1/agent.pb.h"

namespace tessera::agent {

// GPUs in NVML's order (that of PCI_BUS_ID), index as there. Empty without NVIDIA's driver.
std::vector<v1::Device> cuda_devices();

// `slots` CPU devices with indices from `first_index`; the machine's memory is shared out among
// them.
std::vector<v1::Device> cpu_devices(int slots, int first_index);

// CUDA devices chosen by `cuda` ("all", "none" or indices as in "0,2"), then `cpu_slots` CPU slots.
// Indices are unique over both. INVALID_ARGUMENT: `cuda` is none of these, or names a device that
// is not there.
absl::StatusOr<std::vector<v1::Device>> offered_devices(const std::string& cuda, int cpu_slots);

}  // namespace tessera::agent
