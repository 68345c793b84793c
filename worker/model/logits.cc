#include "worker/model/logits.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

namespace tessera {
LabelStatsOut make_label_stats(int64_t count, const at::TensorOptions& options,
                               const MoreLabelStats& more) {
  const auto make = [&](bool wanted = true) {
    return wanted ? at::empty({count}, options.dtype(at::kFloat)) : at::Tensor();
  };
  return {make(), make(), make(), make(), make(), make(more.mean_logit), make(more.log_sum_sq)};
}

LabelStatsOut narrow(const LabelStatsOut& stats, int64_t begin, int64_t count) {
  const auto part = [&](const at::Tensor& x) {
    return x.defined() ? x.narrow(0, begin, count) : x;
  };
  return {part(stats.logprob_C),   part(stats.mean_logprob_C), part(stats.entropy_C),
          part(stats.correct_C),   part(stats.sum_of_exps_C),  part(stats.mean_logit_C),
          part(stats.log_sum_sq_C)};
}

LogitChunks::LogitChunks(const at::Tensor& weight_VD, int64_t chunk_tokens)
    : weight_VD_(weight_VD),
      logits_(at::empty({chunk_tokens, weight_VD.size(0)}, weight_VD.options())),
      exps_(weight_VD.scalar_type() == at::kFloat
                ? logits_
                : at::empty(logits_.sizes(), weight_VD.options().dtype(at::kFloat))) {}

void LogitChunks::run(const at::Tensor& hidden_CD, const at::Tensor& labels_C,
                      const LabelStatsOut& stats) {
  at::Tensor logits_CV = logits_.narrow(0, 0, labels_C.size(0));
  at::mm_out(logits_CV, hidden_CD, weight_VD_.t());
  label_stats_out(stats, exps_.narrow(0, 0, labels_C.size(0)), logits_CV, labels_C);
}

at::Tensor LogitChunks::scratch() const {
  if (exps_.is_alias_of(logits_)) return {};
  return exps_.flatten().view(logits_.scalar_type());
}

at::Tensor LogitChunks::gradient(const at::Tensor& labels_C, const LabelStatsOut& stats,
                                 const at::Tensor& grad_logprob_C,
                                 const at::Tensor& grad_mean_logprob_C) {
  const at::Tensor grad_CV = logits_.narrow(0, 0, labels_C.size(0));
  logit_gradient_out(grad_CV, exps_.narrow(0, 0, labels_C.size(0)), stats.sum_of_exps_C, labels_C,
                     grad_logprob_C, grad_mean_logprob_C);
  return grad_CV;
}

}  // namespace tessera
