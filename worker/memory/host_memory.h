// Host memory that tensors are offloaded to.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/memory/attribution.h"

namespace tessera {

// A tensor in host memory, not initialized, for a job whose tensors live on `device`; charged to
// the host space and to this thread's owner. CPU: an ordinary tensor, that only the ledger tells
// apart. CUDA: a pinned CPU tensor, that copies to and from the device run beside compute. Meta: a
// meta tensor. Throws MemoryError, c10::Error where the device is not there.
at::Tensor empty_host(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device);

// to.copy_(from), where one of them is such a tensor and the other the device's. Does not block on
// CUDA. A rehearsal counts it as bytes between device and host, and as nothing else.
void copy_across(const at::Tensor& to, const at::Tensor& from);

}  // namespace tessera
