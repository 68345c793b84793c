#include "worker/model/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/batch.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// float32 logits [C, V] of the labelled tokens rows_L[begin, begin + C).
at::Tensor chunk_logits(const at::Tensor& hidden_CD, const at::Tensor& weight_VD) {
  return at::mm(hidden_CD, weight_VD.t()).to(at::kFloat);
}

struct FusedHead : Function<FusedHead> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden_TD,
                               const at::Tensor& weight_VD, const at::Tensor& labels_T,
                               int64_t chunk_tokens) {
    const OwnerScope scope(Owner::kHead);
    const at::Tensor rows_L = at::nonzero(labels_T != kIgnoredLabel).squeeze(1);
    const at::Tensor labels_L = labels_T.index_select(0, rows_L);
    const int64_t num_labels = rows_L.size(0);
    const auto wide = hidden_TD.options().dtype(at::kFloat);
    at::Tensor logprobs_L = at::empty({num_labels}, wide),
               entropy_L = at::empty({num_labels}, wide);
    at::Tensor correct_L = at::empty({num_labels}, wide), lse_L = at::empty({num_labels}, wide);
    for (int64_t begin = 0; begin < num_labels; begin += chunk_tokens) {
      const int64_t count = std::min(chunk_tokens, num_labels - begin);
      const at::Tensor rows = rows_L.narrow(0, begin, count),
                       labels = labels_L.narrow(0, begin, count);
      at::Tensor logits = chunk_logits(hidden_TD.index_select(0, rows), weight_VD);
      const at::Tensor lse = at::logsumexp(logits, {1});
      lse_L.narrow(0, begin, count).copy_(lse);
      correct_L.narrow(0, begin, count).copy_(logits.argmax(1) == labels);
      logits.sub_(lse.unsqueeze(1));
      logprobs_L.narrow(0, begin, count).copy_(logits.gather(1, labels.unsqueeze(1)).squeeze(1));
      entropy_L.narrow(0, begin, count).copy_(logits.exp().mul_(logits).sum(1).neg_());
    }
    ctx->save_for_backward({hidden_TD, weight_VD, rows_L, labels_L, lse_L});
    ctx->saved_data["chunk_tokens"] = chunk_tokens;
    const at::Tensor none = at::zeros({labels_T.size(0)}, wide);
    const at::Tensor entropy_T = none.index_copy(0, rows_L, entropy_L);
    const at::Tensor correct_T = none.index_copy(0, rows_L, correct_L);
    ctx->mark_non_differentiable({entropy_T, correct_T});
    return {none.index_copy(0, rows_L, logprobs_L), entropy_T, correct_T};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const OwnerScope scope(Owner::kHead);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &hidden_TD = saved[0], &weight_VD = saved[1], &rows_L = saved[2];
    const at::Tensor &labels_L = saved[3], &lse_L = saved[4];
    const int64_t chunk_tokens = ctx->saved_data["chunk_tokens"].toInt(),
                  num_labels = rows_L.size(0);
    const bool needs_weight = ctx->needs_input_grad(1);
    const at::Tensor grad_L = grads[0].index_select(0, rows_L);
    at::Tensor grad_hidden = at::zeros_like(hidden_TD);
    // Summed over chunks in float32, whatever the compute dtype.
    at::Tensor grad_weight;
    if (needs_weight)
      grad_weight = at::zeros(weight_VD.sizes(), weight_VD.options().dtype(at::kFloat));
    for (int64_t begin = 0; begin < num_labels; begin += chunk_tokens) {
      const int64_t count = std::min(chunk_tokens, num_labels - begin);
      const at::Tensor rows = rows_L.narrow(0, begin, count);
      const at::Tensor grad = grad_L.narrow(0, begin, count).unsqueeze(1);
      const at::Tensor hidden_CD = hidden_TD.index_select(0, rows);
      // d logp / d logits = onehot(label) - softmax(logits)
      at::Tensor grad_logits = chunk_logits(hidden_CD, weight_VD);
      grad_logits.sub_(lse_L.narrow(0, begin, count).unsqueeze(1)).exp_().mul_(grad.neg());
      grad_logits.scatter_add_(1, labels_L.narrow(0, begin, count).unsqueeze(1), grad);
      grad_logits = grad_logits.to(weight_VD.scalar_type());
      grad_hidden.index_copy_(0, rows, at::mm(grad_logits, weight_VD));
      if (!needs_weight) continue;
      if (weight_VD.scalar_type() == at::kFloat) {
        grad_weight.addmm_(grad_logits.t(), hidden_CD);
      } else {
        grad_weight.add_(at::mm(grad_logits.t(), hidden_CD));
      }
    }
    if (needs_weight) grad_weight = grad_weight.to(weight_VD.scalar_type());
    return {grad_hidden, grad_weight, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

HeadOutput fused_head(const at::Tensor& hidden_TD, const at::Tensor& weight_VD,
                      const at::Tensor& labels_T, int64_t chunk_tokens) {
  const variable_list outputs = FusedHead::apply(hidden_TD, weight_VD, labels_T, chunk_tokens);
  return {outputs[0], outputs[1], outputs[2]};
}

}  // namespace tessera
