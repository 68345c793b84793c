// Operators of LibTorch's that have no kernel for tensors without data.
#pragma once

namespace tessera {

// Adds kernels for those that a training step calls; they allocate what the kernels of the device
// that is stood for do (stand_in.h). Once a process; later calls do nothing. Thread safe.
void register_meta_operators();

}  // namespace tessera
