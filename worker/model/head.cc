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

// Of the outputs of some tokens. mean_logprobs may be undefined: zero.
struct OutputGradients {
  at::Tensor logprobs;
  at::Tensor mean_logprobs;

  OutputGradients narrow(int64_t begin, int64_t count) const {
    return {logprobs.narrow(0, begin, count),
            mean_logprobs.defined() ? mean_logprobs.narrow(0, begin, count) : at::Tensor()};
  }
  OutputGradients select(const at::Tensor& rows) const {
    return {logprobs.index_select(0, rows),
            mean_logprobs.defined() ? mean_logprobs.index_select(0, rows) : at::Tensor()};
  }
};

// Gradients of the hidden states and the weight, a chunk of labelled tokens at a time.
class HeadGradients {
 public:
  HeadGradients(const at::Tensor& hidden_TD, const at::Tensor& weight_VD, bool needs_weight)
      : hidden_(at::zeros_like(hidden_TD)), weight_VD_(weight_VD) {
    if (!needs_weight) return;
    // Summed over chunks in float32, whatever the compute dtype.
    weight_ = at::zeros(weight_VD.sizes(), weight_VD.options().dtype(at::kFloat));
  }

  // `probabilities` [C, V] is used up.
  void add(const at::Tensor& rows_C, const at::Tensor& hidden_CD, const at::Tensor& labels_C,
           at::Tensor probabilities, const OutputGradients& grads) {
    // d logp / d logits = onehot(label) - softmax(logits), d mean(logp) / d logits = 1 / V -
    // softmax
    const at::Tensor grad_C1 = grads.logprobs.unsqueeze(1);
    if (grads.mean_logprobs.defined()) {
      const at::Tensor mean_C1 = grads.mean_logprobs.unsqueeze(1);
      probabilities.mul_((grad_C1 + mean_C1).neg_());
      probabilities.add_(mean_C1 / static_cast<double>(probabilities.size(1)));
    } else {
      probabilities.mul_(grad_C1.neg());
    }
    probabilities.scatter_add_(1, labels_C.unsqueeze(1), grad_C1);
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

// The outputs of the L labelled tokens.
struct LabelOutputs {
  at::Tensor logprobs, lse, entropy, correct;
  at::Tensor mean_logprobs;  // undefined unless asked for

  LabelOutputs(int64_t num_labels, const at::TensorOptions& options, bool with_mean) {
    for (at::Tensor* tensor : {&logprobs, &lse, &entropy, &correct})
      *tensor = at::empty({num_labels}, options);
    if (with_mean) mean_logprobs = at::empty({num_labels}, options);
  }

  // Fills [begin, begin + C) from logits [C, V], which turn into log-probabilities; returns the
  // probabilities.
  at::Tensor add_chunk(int64_t begin, at::Tensor logits, const at::Tensor& labels_C) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, labels_C.size(0)); };
    const at::Tensor chunk_lse = at::logsumexp(logits, {1});
    part(lse).copy_(chunk_lse);
    part(correct).copy_(logits.argmax(1) == labels_C);
    logits.sub_(chunk_lse.unsqueeze(1));
    part(logprobs).copy_(logits.gather(1, labels_C.unsqueeze(1)).squeeze(1));
    if (mean_logprobs.defined()) part(mean_logprobs).copy_(logits.mean(1));
    const at::Tensor probabilities = logits.exp();
    part(entropy).copy_(logits.mul_(probabilities).sum(1).neg_());
    return probabilities;
  }
};

bool agrees(const at::Tensor& given, const at::Tensor& known) {
  return at::allclose(given, known, /*rtol=*/1e-6, /*atol=*/0);
}

struct FusedHead : Function<FusedHead> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden_TD,
                               const at::Tensor& weight_VD, const at::Tensor& labels_T,
                               int64_t chunk_tokens, const HeadRequest& request) {
    const OwnerScope scope(Owner::kHead);
    const at::Tensor rows_L = at::nonzero(labels_T != kIgnoredLabel).squeeze(1);
    const at::Tensor labels_L = labels_T.index_select(0, rows_L);
    const int64_t num_labels = rows_L.size(0);
    const auto wide = hidden_TD.options().dtype(at::kFloat);
    LabelOutputs outputs(num_labels, wide, request.mean_logprobs);
    std::optional<HeadGradients> gradients;
    OutputGradients known;
    if (request.gradient.logprobs_T.defined()) {
      gradients.emplace(hidden_TD, weight_VD, ctx->needs_input_grad(1));
      const OutputGradients known_T{request.gradient.logprobs_T, request.gradient.mean_logprobs_T};
      known = known_T.select(rows_L);
    }
    for (int64_t begin = 0; begin < num_labels; begin += chunk_tokens) {
      const int64_t count = std::min(chunk_tokens, num_labels - begin);
      const at::Tensor rows = rows_L.narrow(0, begin, count);
      const at::Tensor labels = labels_L.narrow(0, begin, count);
      const at::Tensor hidden_CD = hidden_TD.index_select(0, rows);
      const at::Tensor probabilities =
          outputs.add_chunk(begin, chunk_logits(hidden_CD, weight_VD), labels);
      if (!gradients) continue;
      const OutputGradients grads = known.narrow(begin, count);
      if (request.gradient.times_probability)
        grads.logprobs.mul_(outputs.logprobs.narrow(0, begin, count).exp());
      gradients->add(rows, hidden_CD, labels, probabilities, grads);
    }
    if (gradients) {
      ctx->save_for_backward(
          {rows_L, known.logprobs, known.mean_logprobs, gradients->hidden(), gradients->weight()});
    } else {
      ctx->save_for_backward({rows_L, hidden_TD, weight_VD, labels_L, outputs.lse});
    }
    ctx->saved_data["chunk_tokens"] = chunk_tokens;
    ctx->saved_data["gradients_are_made"] = gradients.has_value();
    const at::Tensor none = at::zeros({labels_T.size(0)}, wide);
    const auto all = [&](const at::Tensor& x_L) { return none.index_copy(0, rows_L, x_L); };
    const at::Tensor entropy_T = all(outputs.entropy), correct_T = all(outputs.correct);
    ctx->mark_non_differentiable({entropy_T, correct_T});
    variable_list results{all(outputs.logprobs), entropy_T, correct_T};
    if (request.mean_logprobs) results.push_back(all(outputs.mean_logprobs));
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const OwnerScope scope(Owner::kHead);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& rows_L = saved[0];
    const OutputGradients grads_T{grads[0], grads.size() > 3 ? grads[3] : at::Tensor()};
    const OutputGradients grads_L = grads_T.select(rows_L);
    const at::Tensor none;
    if (ctx->saved_data["gradients_are_made"].toBool()) {
      TORCH_CHECK(agrees(grads_L.logprobs, saved[1]) &&
                      (!saved[2].defined() || agrees(grads_L.mean_logprobs, saved[2])),
                  "an objective said another gradient than its loss has");
      return {saved[3], saved[4], none, none, none};
    }
    const at::Tensor &hidden_TD = saved[1], &weight_VD = saved[2];
    const at::Tensor &labels_L = saved[3], &lse_L = saved[4];
    const int64_t chunk_tokens = ctx->saved_data["chunk_tokens"].toInt();
    const int64_t num_labels = rows_L.size(0);
    HeadGradients gradients(hidden_TD, weight_VD, ctx->needs_input_grad(1));
    for (int64_t begin = 0; begin < num_labels; begin += chunk_tokens) {
      const int64_t count = std::min(chunk_tokens, num_labels - begin);
      const auto part = [&](const at::Tensor& x_L) { return x_L.narrow(0, begin, count); };
      const at::Tensor hidden_CD = hidden_TD.index_select(0, part(rows_L));
      at::Tensor logits = chunk_logits(hidden_CD, weight_VD);
      gradients.add(part(rows_L), hidden_CD, part(labels_L),
                    logits.sub_(part(lse_L).unsqueeze(1)).exp_(), grads_L.narrow(begin, count));
    }
    return {gradients.hidden(), gradients.weight(), none, none, none};
  }
};

}  // namespace

HeadOutput fused_head(const at::Tensor& hidden_TD, const at::Tensor& weight_VD,
                      const at::Tensor& labels_T, int64_t chunk_tokens,
                      const HeadRequest& request) {
  HeadRequest wanted = request;
  // Without autograd there is nothing to know.
  if (!c10::GradMode::is_enabled()) wanted.gradient = {};
  const variable_list outputs =
      FusedHead::apply(hidden_TD, weight_VD, labels_T, chunk_tokens, wanted);
  return {outputs[0], outputs[1], outputs[2], wanted.mean_logprobs ? outputs[3] : at::Tensor()};
}

}  // namespace tessera
