// Context parallelism by keys and values that go round (worker/model/context_attention.h).
//
// In step s each rank attends to the keys and values of the rank s places before it, while those of
// the next step are on their way; backward sends the gradients of each step back to where its keys
// came from. Only keys that the receiver's queries see are sent: of documents that end in their own
// chunk, none. A rank holds, beside its own, the keys and values of two others at most.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/batch.h"
#include "worker/kernels/causal_attention.h"

namespace tessera {

// Writes out [T, N, H], of the type of q, and lse, float32 [T * N]. Collective, as is the next.
void ring_attention_out(const at::Tensor& out_TNH, const at::Tensor& lse, const at::Tensor& q_TNH,
                        const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                        const Documents& documents, int64_t window);
// Writes the gradients, from what that took and wrote. They may be no inputs.
void ring_attention_backward_out(const AttentionGradients& grads, const at::Tensor& grad_out_TNH,
                                 const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                                 const at::Tensor& v_TKH, const at::Tensor& out_TNH,
                                 const at::Tensor& lse, const Documents& documents, int64_t window);

}  // namespace tessera
