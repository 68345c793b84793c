// A decoder block on a CPU as one function with a backward of its own: what gradient checkpointing
// runs in place of a second forward through autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/fused_attention.h"
#include "worker/model/fused_mlp.h"

namespace tessera {

struct FusedBlock {
  SelfAttention attention;
  const Parameter* mlp_norm;
  GatedMlp mlp;
};

// Whether a block of these `parameters` may be run on such a stream: float32 on a CPU, each trained
// parameter has a sink for its gradient, and the adapters of `linears` are plain.
bool can_run_fused(const at::Tensor& x_TD, const std::vector<Parameter*>& parameters,
                   const std::vector<Linear*>& linears, const Stream& stream);

// x + attention, + the MLP of that. Keeps x and, by the policy, what heads attended to. Backward
// makes the rest again, but for the last product of the MLP. The results are the plain block's but
// for the rounding of float32: gradients of weights are summed by parts of the tokens. `block` and
// `stream` must live until backward is done.
at::Tensor fused_block(const at::Tensor& x_TD, const FusedBlock& block, const Stream& stream,
                       RecomputePolicy policy);

}  // namespace tessera
