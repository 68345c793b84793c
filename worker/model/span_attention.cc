#include "worker/model/span_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "worker/kernels/stand_in.h"
#include "worker/model/flash_attention.h"
#include "worker/model/flash_span_attention.h"
#include "worker/model/span_pieces.h"

namespace tessera {

AttentionSums make_attention_sums(const at::Tensor& q_TNH) {
  const at::TensorOptions wide = q_TNH.options().dtype(at::kFloat).requires_grad(false);
  return {at::zeros(q_TNH.sizes(), wide),
          at::full({q_TNH.size(1), q_TNH.size(0)}, -std::numeric_limits<float>::infinity(), wide)};
}

void add_attention_(const AttentionSums& sums, const SpanInputs& inputs) {
  if (inputs.spans.empty()) return;
  if (has_flash_attention(inputs.q_TNH)) return add_flash_attention_(sums, inputs);
  if (on_cpu(inputs.q_TNH) && inputs.q_TNH.scalar_type() == at::kFloat) {
    return add_causal_attention_(sums.out_TNH, sums.lse_NT, inputs.q_TNH, inputs.k_UKH,
                                 inputs.v_UKH, inputs.spans, inputs.window);
  }
  add_attention_of_pieces_(sums, inputs);
}

void add_attention_gradients_(const AttentionGradients& grads, const AttendedTo& attended,
                              const SpanInputs& inputs) {
  if (inputs.spans.empty()) return;
  if (has_flash_attention(inputs.q_TNH))
    return add_flash_attention_gradients_(grads, attended, inputs);
  if (on_cpu(inputs.q_TNH) && inputs.q_TNH.scalar_type() == at::kFloat) {
    return add_causal_attention_gradients_(grads, attended.grad_out_TNH, inputs.q_TNH, inputs.k_UKH,
                                           inputs.v_UKH, attended.out_TNH, attended.lse_NT,
                                           inputs.spans, inputs.window);
  }
  add_attention_of_pieces_gradients_(grads, attended, inputs);
}

}  // namespace tessera
