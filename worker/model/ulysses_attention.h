// Context parallelism by heads (worker/model/context_attention.h).
//
// Each rank takes size'th part of the query heads and the key/value heads that these read, for all
// tokens of the stream: an all-to-all brings queries, keys and values there, and another what they
// attended to back to the ranks of the tokens. Where there are fewer key/value heads than ranks,
// each goes to the several ranks that read it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/batch.h"
#include "worker/kernels/causal_attention.h"

namespace tessera {

// Whether heads can be dealt to so many ranks: query heads are a multiple of them, and key/value
// heads a multiple or a divisor.
bool can_deal_heads(int64_t num_heads, int64_t num_kv_heads, int size);

// As ring_attention_out and ring_attention_backward_out. Requires can_deal_heads; lse is that of
// this rank's heads.
void ulysses_attention_out(const at::Tensor& out_TNH, const at::Tensor& lse,
                           const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                           const at::Tensor& v_TKH, const Documents& documents, int64_t window);
void ulysses_attention_backward_out(const AttentionGradients& grads, const at::Tensor& grad_out_TNH,
                                    const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                                    const at::Tensor& v_TKH, const at::Tensor& out_TNH,
                                    const at::Tensor& lse, const Documents& documents,
                                    int64_t window);

}  // namespace tessera
