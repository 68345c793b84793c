// A matrix with its adapter merged into it.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/linear.h"

namespace tessera {

// Rows [first, first + count) of the weight as forward uses it: float32 [count, I], made from its
// bytes where it is quantized. A tensor of its own unless it is float32 already.
at::Tensor wide_rows(const Parameter& weight, int64_t first, int64_t count);

// The same rows of W + scale * B A; with DoRA, each brought to its own length. Computed in float32
// from the values that forward uses. Requires an adapter; without autograd.
at::Tensor merged_rows(const Linear& linear, int64_t first, int64_t count);

}  // namespace tessera
