// Small tables of numbers, for code that has to look values up by LibTorch's operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace tessera {

// float32 `values`, which must live for ever, on `device`: copied there once a process.
at::Tensor device_table(std::span<const float> values, at::Device device);

// The value of each code (uint8), float32 in the codes' shape.
at::Tensor look_up(std::span<const float> values, const at::Tensor& codes);

}  // namespace tessera
