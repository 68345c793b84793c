#include "worker/model/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "worker/batch.h"
#include "worker/memory/ledger.h"
#include "worker/model/head_gradients.h"
#include "worker/model/logits.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

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

struct FusedHead : Function<FusedHead> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden_TD,
                               const at::Tensor& weight_VD, const at::Tensor& labels_T,
                               const at::Tensor& rows_L, int64_t chunk_tokens,
                               const HeadRequest& request, int64_t sink_pointer, bool is_last_use) {
    const OwnerScope scope(Owner::kHead);
    auto* sink = reinterpret_cast<GradientSink*>(sink_pointer);
    const at::Tensor labels_L = labels_T.index_select(0, rows_L);
    const int64_t num_labels = rows_L.size(0);
    const LabelStatsOut outputs = make_label_stats(num_labels, hidden_TD.options(),
                                                   {request.mean_logits, request.log_sum_sq_probs});
    std::optional<HeadGradients> gradients;
    OutputGradients known;
    if (request.gradient.logprobs_T.defined()) {
      gradients.emplace(hidden_TD, weight_VD, ctx->needs_input_grad(1), sink);
      const OutputGradients known_T{request.gradient.logprobs_T, request.gradient.mean_logprobs_T};
      known = known_T.select(rows_L);
    }
    {
      LogitChunks chunks(weight_VD, std::min(chunk_tokens, num_labels));
      for (int64_t begin = 0; begin < num_labels; begin += chunk_tokens) {
        const int64_t count = std::min(chunk_tokens, num_labels - begin);
        const at::Tensor rows = rows_L.narrow(0, begin, count);
        const at::Tensor labels = labels_L.narrow(0, begin, count);
        const at::Tensor hidden_CD = hidden_TD.index_select(0, rows);
        const LabelStatsOut stats = narrow(outputs, begin, count);
        chunks.run(hidden_CD, labels, stats);
        if (!gradients) continue;
        const OutputGradients grads = known.narrow(begin, count);
        if (request.gradient.times_probability) grads.logprobs.mul_(stats.logprob_C.exp());
        gradients->add(rows, hidden_CD,
                       chunks.gradient(labels, stats, grads.logprobs, grads.mean_logprobs),
                       chunks.scratch());
      }
    }
    if (gradients) {
      ctx->save_for_backward({rows_L, known.logprobs, known.mean_logprobs, gradients->hidden(),
                              gradients->finish_weight()});
    } else {
      ctx->save_for_backward({rows_L, hidden_TD, weight_VD, labels_L});
    }
    ctx->saved_data["chunk_tokens"] = chunk_tokens;
    ctx->saved_data["sink_at_end"] = is_last_use ? sink_pointer : 0;
    ctx->saved_data["sink"] = sink_pointer;
    ctx->saved_data["gradients_are_made"] = gradients.has_value();
    const at::Tensor none = at::zeros({labels_T.size(0)}, outputs.logprob_C.options());
    const auto all = [&](const at::Tensor& x_L) { return none.index_copy(0, rows_L, x_L); };
    const at::Tensor entropy_T = all(outputs.entropy_C), correct_T = all(outputs.correct_C);
    variable_list results{all(outputs.logprob_C), entropy_T, correct_T};
    variable_list constants{entropy_T, correct_T};
    for (const at::Tensor* more_L : {&outputs.mean_logit_C, &outputs.log_sum_sq_C}) {
      if (!more_L->defined()) continue;
      results.push_back(all(*more_L));
      constants.push_back(results.back());
    }
    ctx->mark_non_differentiable(constants);
    ctx->saved_data["mean_logprobs"] = request.mean_logprobs;
    if (request.mean_logprobs) results.push_back(all(outputs.mean_logprob_C));
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const OwnerScope scope(Owner::kHead);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& rows_L = saved[0];
    const bool of_mean = ctx->saved_data["mean_logprobs"].toBool();
    const OutputGradients grads_T{grads[0], of_mean ? grads.back() : at::Tensor()};
    const OutputGradients grads_L = grads_T.select(rows_L);
    auto* sink = reinterpret_cast<GradientSink*>(ctx->saved_data["sink"].toInt());
    auto* sink_at_end = reinterpret_cast<GradientSink*>(ctx->saved_data["sink_at_end"].toInt());
    const at::Tensor none;
    if (ctx->saved_data["gradients_are_made"].toBool()) {
      TORCH_CHECK(gradients_agree(grads_L.logprobs, saved[1]) &&
                      (!saved[2].defined() || gradients_agree(grads_L.mean_logprobs, saved[2])),
                  "an objective said another gradient than its loss has");
      if (sink_at_end != nullptr) sink_at_end->done();
      return {saved[3], saved[4], none, none, none, none, none, none};
    }
    const at::Tensor &hidden_TD = saved[1], &weight_VD = saved[2], &labels_L = saved[3];
    const int64_t chunk_tokens = ctx->saved_data["chunk_tokens"].toInt();
    const int64_t num_labels = rows_L.size(0);
    HeadGradients gradients(hidden_TD, weight_VD, ctx->needs_input_grad(1), sink);
    {
      LogitChunks chunks(weight_VD, std::min(chunk_tokens, num_labels));
      for (int64_t begin = 0; begin < num_labels; begin += chunk_tokens) {
        const int64_t count = std::min(chunk_tokens, num_labels - begin);
        const auto part = [&](const at::Tensor& x_L) { return x_L.narrow(0, begin, count); };
        const at::Tensor hidden_CD = hidden_TD.index_select(0, part(rows_L));
        const LabelStatsOut stats = make_label_stats(count, hidden_TD.options());
        chunks.run(hidden_CD, part(labels_L), stats);
        const OutputGradients grads_C = grads_L.narrow(begin, count);
        gradients.add(
            part(rows_L), hidden_CD,
            chunks.gradient(part(labels_L), stats, grads_C.logprobs, grads_C.mean_logprobs),
            chunks.scratch());
      }
    }
    const at::Tensor grad_weight_VD = gradients.finish_weight();
    if (sink_at_end != nullptr) sink_at_end->done();
    return {gradients.hidden(), grad_weight_VD, none, none, none, none, none, none};
  }
};

}  // namespace

int64_t fitting_chunk_tokens(int64_t vocab_size) {
  constexpr int64_t kLogitBytes = int64_t{64} << 20, kMinTokens = 64;
  return std::max(kMinTokens, kLogitBytes / (vocab_size * static_cast<int64_t>(sizeof(float))));
}

HeadOutput fused_head(const at::Tensor& hidden_TD, const at::Tensor& weight_VD,
                      const HeadLabels& labels, int64_t chunk_tokens, const HeadRequest& request,
                      const HeadWeightSink& weight_sink) {
  HeadRequest wanted = request;
  // Without autograd there is nothing to know.
  if (!c10::GradMode::is_enabled()) wanted.gradient = {};
  const variable_list outputs =
      FusedHead::apply(hidden_TD, weight_sink.sink == nullptr ? weight_VD : weight_VD.detach(),
                       labels.labels_T, labels.rows_L, chunk_tokens, wanted,
                       reinterpret_cast<int64_t>(weight_sink.sink), weight_sink.is_last_use);
  HeadOutput out{outputs[0], outputs[1], outputs[2]};
  size_t next = 3;
  if (wanted.mean_logits) out.mean_logits_T = outputs[next++];
  if (wanted.log_sum_sq_probs) out.log_sum_sq_probs_T = outputs[next++];
  if (wanted.mean_logprobs) out.mean_logprobs_T = outputs[next];
  return out;
}

}  // namespace tessera
