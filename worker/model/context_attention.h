// Attention where several ranks share the stream (worker/batch.h, StreamPart), by
// documents.part->strategy.
//
// All functions are as attend(), with documents.part set: q_TNH, k_TKH and v_TKH are of this rank's
// two chunks, one after the other, and so is the result. Documents are kept apart exactly, whatever
// chunks they begin and end in. Collective: backward, too.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/kernels/causal_attention.h"
#include "worker/model/attention.h"

namespace tessera {

// Differentiable. With options.kept, a rerun takes the outputs from there; backward exchanges keys
// and values again. With dropout, keys and values are gathered whatever the strategy: its masks are
// drawn for all keys of a query at once. `documents` must live until backward is done.
at::Tensor attend_over_context(const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                               const at::Tensor& v_TKH, const Documents& documents,
                               const AttentionOptions& options);

// The same past autograd, without dropout. Writes out, of the type of q, and lse, float32 [T * N].
void context_attention_out(const at::Tensor& out_TNH, const at::Tensor& lse,
                           const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                           const at::Tensor& v_TKH, const Documents& documents, int64_t window);
// Writes the gradients, from what that took and wrote. They may be no inputs.
void context_attention_backward_out(const AttentionGradients& grads, const at::Tensor& grad_out_TNH,
                                    const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                                    const at::Tensor& v_TKH, const at::Tensor& out_TNH,
                                    const at::Tensor& lse, const Documents& documents,
                                    int64_t window);

}  // namespace tessera
