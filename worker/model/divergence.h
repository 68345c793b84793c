// The fused divergence of two heads: how far a student's predictions are from a teacher's, without
// the [T, V] logits of either (generalised knowledge distillation, arXiv 2306.13649).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/model/head.h"

namespace tessera {

// What logits are made of: hidden_TD weight_VD^T.
struct LogitFactors {
  at::Tensor hidden_TD;
  at::Tensor weight_VD;
};

struct DivergenceRequest {
  // Of the generalised Jensen-Shannon divergence beta KL(q | m) + (1 - beta) KL(p | m), in nats,
  // with p the student's softmax, q the teacher's and m = (1 - beta) p + beta q. From 0 to 1; at 0
  // it is KL(q | p), at 1 KL(p | q).
  double beta = 0.5;
  // The gradient that the loss will have with respect to the result: float32 [T], read at rows_L.
  // Needed where autograd is on: there the gradients are made in forward, so that neither the
  // logits are made twice nor the teacher's weights stay. Backward throws when it was another.
  at::Tensor gradient_T;
};

// The divergence at each token: float32 [T], 0 where there is no label; differentiable by the
// student's two tensors, once. rows_L (int64, ascending) are the tokens that have a label. Both
// models have the same vocabulary, compute dtype (float32 or bfloat16) and tokens, and may have
// different widths. Softmaxes and sums are taken in float32.
//
// Memory beside inputs and outputs: 2 x chunk_tokens x V logits in the compute dtype, of both
// models and in place of them the gradient; the gradients of the student's hidden states and,
// where there is no sink for it, of its weight. On other devices than CPUs another 5 x chunk_tokens
// x V values of float32, as ATen's operators do the work there. Three matrix products of the
// student's and one of the teacher's; without autograd one each.
//
// `weight_sink`: as of fused_head, for the student's weight.
at::Tensor fused_divergence(const LogitFactors& student, const LogitFactors& teacher,
                            const at::Tensor& rows_L, int64_t chunk_tokens,
                            const DivergenceRequest& request,
                            const HeadWeightSink& weight_sink = {});

}  // namespace tessera
