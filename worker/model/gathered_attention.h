// Context parallelism by gathering keys and values (worker/model/context_attention.h): those of the
// whole stream, of one layer at a time, in forward and again in backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/batch.h"
#include "worker/kernels/causal_attention.h"

namespace tessera {

// Writes out [T, N, H], of the type of q, and lse, float32 [T * N]. Collective, as is the next.
void gathered_attention_out(const at::Tensor& out_TNH, const at::Tensor& lse,
                            const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                            const at::Tensor& v_TKH, const Documents& documents, int64_t window);
// Writes the gradients, from what that took and wrote. They may be no inputs.
void gathered_attention_backward_out(const AttentionGradients& grads,
                                     const at::Tensor& grad_out_TNH, const at::Tensor& q_TNH,
                                     const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                                     const at::Tensor& out_TNH, const at::Tensor& lse,
                                     const Documents& documents, int64_t window);

}  // namespace tessera
