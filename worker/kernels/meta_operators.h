// Operators of LibTorch's that have no kernel for tensors without data.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

// Adds kernels for those that a training step calls; they allocate what the kernels of the device
// that is stood for do (stand_in.h). Once a process; later calls do nothing. Thread safe.
void register_meta_operators();

// A tensor without data, made with what bernoulli_() takes beside it on the device stood for.
at::Tensor draw_nothing(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace tessera
