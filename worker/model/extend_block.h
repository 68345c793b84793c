// A decoder block on a CPU as one function where it extends sequences: what generation runs in
// place of the block's layers one by one.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/model/fused_block.h"

namespace tessera {

// Whether a block of these `linears` may be run so: float32 on a CPU, with a cache, and the
// adapters are plain.
bool can_extend_fused(const at::Tensor& x_TD, const std::vector<Linear*>& linears,
                      const Stream& stream);

// Block `layer` (from 0) on such a stream: x + attention, + the MLP of that. A row of the result
// depends on nothing but that row and what its sequence has in the cache.
at::Tensor extend_block(const at::Tensor& x_TD, const FusedBlock& block, int64_t layer,
                        const Stream& stream);

}  // namespace tessera
