// Attention to the keys at hand, added up until all were: by log-sum-exp, in float32. For any
// device and type, without dropout. Not differentiable; the gradients have a function of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/kernels/attention_span.h"
#include "worker/kernels/causal_attention.h"

namespace tessera {

// What the queries have attended to so far: float32 [T, N, H], and its log-sum-exp, contiguous
// [N, T]: -infinity where it is nothing.
struct AttentionSums {
  at::Tensor out_TNH, lse_NT;
};

// Attention to nothing yet, for such queries.
AttentionSums make_attention_sums(const at::Tensor& q_TNH);

// Queries [T, N, H], and keys and values [U, K, H] at hand, with K dividing N, of one type. In
// each, no row is in two spans. Scores are scaled by 1 / sqrt(H).
struct SpanInputs {
  const at::Tensor &q_TNH, &k_UKH, &v_UKH;
  const std::vector<AttentionSpan>& spans;
  int64_t window = 0;  // of the spans
};

// Adds what the queries see of these keys. No key may be added twice.
void add_attention_(const AttentionSums& sums, const SpanInputs& inputs);

// Of all that the queries see: out in their type, and its gradient; lse_NT as of AttentionSums.
struct AttendedTo {
  const at::Tensor &grad_out_TNH, &out_TNH, &lse_NT;
};

// Adds the gradients that come through these keys: float32, shaped as queries, keys and values.
void add_attention_gradients_(const AttentionGradients& grads, const AttendedTo& attended,
                              const SpanInputs& inputs);

}  // namespace tessera
