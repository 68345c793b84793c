// The fused head: from hidden states to log-probabilities of the labels, without the [T, V] logits.
//
// The tokens that have a label are taken in chunks; a chunk's logits live only while it is worked
// on, in forward and again in backward. Every objective reads nothing but these outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

struct HeadOutput {
  at::Tensor logprobs_T;  // float32, differentiable: log p(label), 0 where the label is ignored
  at::Tensor entropy_T;   // float32: of the predicted distribution, in nats, 0 where ignored
  at::Tensor correct_T;   // float32: 1 where the label is the most likely token, 0 elsewhere
};

// hidden_TD and weight_VD in the compute dtype, labels_T int64 with kIgnoredLabel. Softmax and sums
// are taken in float32. Peak memory: about 2 * chunk_tokens * V float32, plus the gradient of the
// weight.
//
// `known_gradient_T` (float32, or undefined): the gradient that logprobs_T will get, where an
// objective knows it beforehand. Gradients are then made in forward, while a chunk's logits are
// there anyway, and backward runs no matrix product: three instead of four in all. Backward throws
// when the gradient turns out to be another.
HeadOutput fused_head(const at::Tensor& hidden_TD, const at::Tensor& weight_VD,
                      const at::Tensor& labels_T, int64_t chunk_tokens,
                      const at::Tensor& known_gradient_T = {});

}  // namespace tessera
