// The fused head: from hidden states to log-probabilities of the labels, without the [T, V] logits.
//
// The tokens that have a label are taken in chunks; a chunk's logits live only while it is worked
// on, in forward and again in backward. Every objective reads nothing but these outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/model/gradient_sink.h"

namespace tessera {

struct HeadOutput {
  at::Tensor logprobs_T;  // float32, differentiable: log p(label), 0 where the label is ignored
  at::Tensor entropy_T;   // float32: of the predicted distribution, in nats, 0 where ignored
  at::Tensor correct_T;   // float32: 1 where the label is the most likely token, 0 elsewhere
  // float32, differentiable: the mean of log p over the vocabulary, 0 where the label is ignored.
  // Undefined unless asked for.
  at::Tensor mean_logprobs_T;
  // float32, 0 where the label is ignored; undefined unless asked for. The mean of the logits over
  // the vocabulary, and the log of the sum of p^2 over it.
  at::Tensor mean_logits_T;
  at::Tensor log_sum_sq_probs_T;
};

// The gradient that an objective's loss will have with respect to the outputs, where the objective
// can tell before it has seen them.
struct KnownGradient {
  at::Tensor logprobs_T;  // float32; undefined: nothing is known
  // Each token's gradient is logprobs_T times the probability of its label.
  bool times_probability = false;
  at::Tensor mean_logprobs_T;  // float32; undefined: zero
};

struct HeadLabels {
  at::Tensor labels_T;  // int64, with kIgnoredLabel
  at::Tensor rows_L;    // int64: the tokens that have a label, ascending
};

// What an objective wants of the head.
struct HeadRequest {
  bool mean_logprobs = false;
  KnownGradient gradient;
  bool mean_logits = false;
  bool log_sum_sq_probs = false;
  // What logits are divided by: log-probabilities and entropies are of that distribution.
  double temperature = 1;
};

// Where the gradient of the weight is added up, in float32; the weight gets none from autograd
// then.
struct HeadWeightSink {
  GradientSink* sink = nullptr;  // null: nowhere
  bool is_last_use = true;       // whether that is then the whole gradient
};

// hidden_TD and weight_VD in the compute dtype. Softmax and sums are taken in float32. Memory
// beside inputs and outputs: chunk_tokens x V logits (float32; in bfloat16 half of that again), the
// gradient of the hidden states, and that of the weight where there is no sink for it.
//
// With request.gradient, gradients are made in forward, while a chunk's logits are there anyway,
// and backward runs no matrix product: three instead of four in all. Backward throws when the
// gradient turns out to be another. Each forward has one backward.
// It knows no temperature: DecoderModel::head() divides the hidden states by it.
HeadOutput fused_head(const at::Tensor& hidden_TD, const at::Tensor& weight_VD,
                      const HeadLabels& labels, int64_t chunk_tokens,
                      const HeadRequest& request = {}, const HeadWeightSink& weight_sink = {});

// The chunk whose float32 logits take 64 MiB, but at least 64 tokens.
int64_t fitting_chunk_tokens(int64_t vocab_size);

}  // namespace tessera
