// The device a job's tensors live on, as its ledger sees it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "tessera/v1/telemetry.pb.h"
#include "worker/memory/ledger.h"

namespace tessera {

// Has `ledger` count the tensors of `device`, and bounds them to `limit_bytes` (0: what it has): an
// allocation beyond is refused and kept as last_refusal(). On a CPU the ledger refuses it. On a GPU
// LibTorch's allocator does, which counts whole blocks; tensors on the CPU are then counted as
// host memory. Once a process, before the first tensor of the job.
void use_device(MemoryLedger& ledger, c10::Device device, int64_t limit_bytes);

// Of the device's caching allocator; nothing where it has none.
std::optional<v1::DeviceAllocator> device_allocator(c10::Device device);

// For use_device() and device_allocator(): of a CUDA device.
void use_cuda_device(MemoryLedger& ledger, c10::Device device, int64_t limit_bytes);
v1::DeviceAllocator cuda_allocator(c10::Device device);

}  // namespace tessera
