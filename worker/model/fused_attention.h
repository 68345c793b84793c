// The attention half of a block forward and backward, past autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/projection.h"

namespace tessera {

// attend(rotate(norm(q(x))), rotate(norm(k(x))), v(x)) on the normed stream, then o.
struct SelfAttention {
  const Parameter* norm;
  const Parameter* q_norm;  // of each head before RoPE; null: none, as k_norm then
  const Parameter* k_norm;
  double eps;
  Projection qkv;  // [q; k; v]
  Projection o;
  int64_t num_heads, num_kv_heads, head_dim, window;
};

// All tensors are float32 on a CPU. Both functions work on some documents at a time, so that
// queries, keys and values are never whole; where the stream is shared with other ranks, on all of
// this one's tokens, and they are collective.

// Writes what heads attended to, before o: attended [T, N * H], and lse as causal_attention_out
// or context_attention_out.
void attend_out(const at::Tensor& attended, const at::Tensor& lse, const at::Tensor& x_TD,
                const SelfAttention& a, const Stream& stream);

// Of y = x + o(attended): turns grad_TD from the gradient of y into that of x. Makes queries, keys
// and values again. The gradients of the parameters go to their sinks.
void attention_backward_(const at::Tensor& grad_TD, const at::Tensor& x_TD,
                         const at::Tensor& attended, const at::Tensor& lse, const SelfAttention& a,
                         const Stream& stream);

}  // namespace tessera
