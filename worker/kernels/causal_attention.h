// Causal attention within documents in float32 on a CPU, from matrix products of blocks of queries
// with all the keys that they see: half the time of ATen's flash kernel, whose blocks are too small
// for MKL's products. Scratch is a few MiB a thread.
//
// All tensors are float32: q, out and their gradients [T, N, H], k, v and theirs [T, K, H] with K
// dividing N, of any strides but a last one of 1. Documents are cut out of T by cu_seqlens, which
// begins with 0. A token sees itself and those before it in its document, `window` in all (0: no
// limit). Scores are scaled by 1 / sqrt(H). On tensors that stand for such (stand_in.h) the scratch
// is allocated, and nothing computed.
//
// Where not all keys are at hand, attention is added up from spans (attention_span.h); k and v may
// then have another number of rows than q. No row may be in two spans of one call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/kernels/attention_span.h"

namespace tessera {

// Writes out, and to lse [T * N] the log-sum-exp of each query's scores: a contiguous [N, length] a
// document.
void causal_attention_out(const at::Tensor& out_TNH, const at::Tensor& lse, const at::Tensor& q_TNH,
                          const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                          const std::vector<int64_t>& cu_seqlens, int64_t window);

// Adds what the spans' queries see to what they have seen so far: out is the attention to both,
// and lse [N, T], contiguous, its log-sum-exp. Where lse is -infinity nothing was seen, and out is
// not read. No key may be added twice.
void add_causal_attention_(const at::Tensor& out_TNH, const at::Tensor& lse_NT,
                           const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                           const at::Tensor& v_TKH, const std::vector<AttentionSpan>& spans,
                           int64_t window);

// Floating-point operations of so many products over all pairs of a query and a key that it sees:
// forward has 2, backward 5.
double attention_flops(const at::Tensor& q_TNH, const std::vector<AttentionSpan>& spans,
                       int64_t window, int num_products);

struct AttentionGradients {
  at::Tensor q_TNH, k_TKH, v_TKH;
};
// Writes the gradients, from what the forward took and wrote. They may be no inputs.
void causal_attention_backward_out(const AttentionGradients& grads, const at::Tensor& grad_out_TNH,
                                   const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                                   const at::Tensor& v_TKH, const at::Tensor& out_TNH,
                                   const at::Tensor& lse, const std::vector<int64_t>& cu_seqlens,
                                   int64_t window);

// Adds the gradients that come through the spans' pairs. out and lse are of all that the queries
// see.
void add_causal_attention_gradients_(const AttentionGradients& grads,
                                     const at::Tensor& grad_out_TNH, const at::Tensor& q_TNH,
                                     const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                                     const at::Tensor& out_TNH, const at::Tensor& lse_NT,
                                     const std::vector<AttentionSpan>& spans, int64_t window);

}  // namespace tessera
