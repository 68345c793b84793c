#include "worker/model/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "worker/batch.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// float32 logits [C, V] of C labelled tokens.
at::Tensor chunk_logits(const at::Tensor& hidden_CD, const at::Tensor& weight_VD) {
  return at::mm(hidden_CD, weight_VD.t()).to(at::kFloat);
}

// Gradients of the hidden states and the weight, a chunk of labelled tokens at a time.
class HeadGradients {
 public:
  HeadGradients(const at::Tensor& hidden_TD, const at::Tensor& weight_VD, bool needs_weight)
      : hidden_(at::zeros_like(hidden_TD)), weight_VD_(weight_VD) {
    if (!needs_weight) return;
    // Summed over chunks in float32, whatever the compute dtype.
    weight_ = at::zeros(weight_VD.sizes(), weight_VD.options().dtype(at::kFloat));
  }

  // `probabilities` [C, V] is used up; grad_C1 is the gradient of the chunk's log-probabilities.
  void add(const at::Tensor& rows_C, const at::Tensor& hidden_CD, const at::Tensor& labels_C,
           at::Tensor probabilities, const at::Tensor& grad_C1) {
    // d logp / d logits = onehot(label) - softmax(logits)
    probabilities.mul_(grad_C1.neg()).scatter_add_(1, labels_C.unsqueeze(1), grad_C1);
    const at::Tensor grad_logits = probabilities.to(weight_VD_.scalar_type());
    hidden_.index_copy_(0, rows_C, at::mm(grad_logits, weight_VD_));
    if (!weight_.defined()) return;
    if (weight_VD_.scalar_type() == at::kFloat) {
      weight_.addmm_(grad_logits.t(), hidden_CD);
    } else {
      weight_.add_(at::mm(grad_logits.t(), hidden_CD));
    }
  }

  at::Tensor hidden() const { return hidden_; }
  at::Tensor weight() const {
    return weight_.defined() ? weight_.to(weight_VD_.scalar_type()) : weight_;
  }

 private:
  at::Tensor hidden_;
  at::Tensor weight_;
  const at::Tensor& weight_VD_;
};

struct FusedHead : Function<FusedHead> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden_TD,
                               const at::Tensor& weight_VD, const at::Tensor& labels_T,
                               int64_t chunk_tokens,
                               const std::optional<at::Tensor>& known_gradient_T) {
    const OwnerScope scope(Owner::kHead);
    const at::Tensor rows_L = at::nonzero(labels_T != kIgnoredLabel).squeeze(1);
    const at::Tensor labels_L = labels_T.index_select(0, rows_L);
    const int64_t num_labels = rows_L.size(0);
    const auto wide = hidden_TD.options().dtype(at::kFloat);
    at::Tensor logprobs_L = at::empty({num_labels}, wide), lse_L = at::empty({num_labels}, wide);
    at::Tensor entropy_L = at::empty({num_labels}, wide), correct_L = at::empty({num_labels}, wide);
    std::optional<HeadGradients> gradients;
    at::Tensor known_L;
    if (known_gradient_T) {
      gradients.emplace(hidden_TD, weight_VD, ctx->needs_input_grad(1));
      known_L = known_gradient_T->index_select(0, rows_L);
    }
    for (int64_t begin = 0; begin < num_labels; begin += chunk_tokens) {
      const int64_t count = std::min(chunk_tokens, num_labels - begin);
      const auto part = [&](const at::Tensor& x_L) { return x_L.narrow(0, begin, count); };
      const at::Tensor rows = part(rows_L), labels = part(labels_L);
      const at::Tensor hidden_CD = hidden_TD.index_select(0, rows);
      at::Tensor logits = chunk_logits(hidden_CD, weight_VD);
      const at::Tensor lse = at::logsumexp(logits, {1});
      part(lse_L).copy_(lse);
      part(correct_L).copy_(logits.argmax(1) == labels);
      logits.sub_(lse.unsqueeze(1));
      part(logprobs_L).copy_(logits.gather(1, labels.unsqueeze(1)).squeeze(1));
      const at::Tensor probabilities = logits.exp();
      part(entropy_L).copy_(logits.mul_(probabilities).sum(1).neg_());
      if (gradients) {
        gradients->add(rows, hidden_CD, labels, probabilities, part(known_L).unsqueeze(1));
      }
    }
    if (gradients) {
      ctx->save_for_backward({*known_gradient_T, rows_L, gradients->hidden(), gradients->weight()});
    } else {
      ctx->save_for_backward({hidden_TD, weight_VD, rows_L, labels_L, lse_L});
    }
    ctx->saved_data["chunk_tokens"] = chunk_tokens;
    ctx->saved_data["gradients_are_made"] = gradients.has_value();
    const at::Tensor none = at::zeros({labels_T.size(0)}, wide);
    const at::Tensor entropy_T = none.index_copy(0, rows_L, entropy_L);
    const at::Tensor correct_T = none.index_copy(0, rows_L, correct_L);
    ctx->mark_non_differentiable({entropy_T, correct_T});
    return {none.index_copy(0, rows_L, logprobs_L), entropy_T, correct_T};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const OwnerScope scope(Owner::kHead);
    const auto saved = ctx->get_saved_variables();
    if (ctx->saved_data["gradients_are_made"].toBool()) {
      const at::Tensor &known_T = saved[0], &rows_L = saved[1];
      TORCH_CHECK(at::allclose(grads[0].index_select(0, rows_L), known_T.index_select(0, rows_L),
                               /*rtol=*/1e-6, /*atol=*/0),
                  "an objective said another gradient than its loss has");
      return {saved[2], saved[3], at::Tensor(), at::Tensor(), at::Tensor()};
    }
    const at::Tensor &hidden_TD = saved[0], &weight_VD = saved[1], &rows_L = saved[2];
    const at::Tensor &labels_L = saved[3], &lse_L = saved[4];
    const int64_t chunk_tokens = ctx->saved_data["chunk_tokens"].toInt();
    const int64_t num_labels = rows_L.size(0);
    const at::Tensor grad_L = grads[0].index_select(0, rows_L);
    HeadGradients gradients(hidden_TD, weight_VD, ctx->needs_input_grad(1));
    for (int64_t begin = 0; begin < num_labels; begin += chunk_tokens) {
      const int64_t count = std::min(chunk_tokens, num_labels - begin);
      const auto part = [&](const at::Tensor& x_L) { return x_L.narrow(0, begin, count); };
      const at::Tensor hidden_CD = hidden_TD.index_select(0, part(rows_L));
      at::Tensor logits = chunk_logits(hidden_CD, weight_VD);
      gradients.add(part(rows_L), hidden_CD, part(labels_L),
                    logits.sub_(part(lse_L).unsqueeze(1)).exp_(), part(grad_L).unsqueeze(1));
    }
    return {gradients.hidden(), gradients.weight(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

HeadOutput fused_head(const at::Tensor& hidden_TD, const at::Tensor& weight_VD,
                      const at::Tensor& labels_T, int64_t chunk_tokens,
                      const at::Tensor& known_gradient_T) {
  // Without autograd there is nothing to know.
  std::optional<at::Tensor> known_T;
  if (known_gradient_T.defined() && c10::GradMode::is_enabled()) known_T = known_gradient_T;
  const variable_list outputs =
      FusedHead::apply(hidden_TD, weight_VD, labels_T, chunk_tokens, known_T);
  return {outputs[0], outputs[1], outputs[2]};
}

}  // namespace tessera
