#include "worker/model/logits.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>

namespace tessera {
namespace {

// What tensor_ops.h has of the same name, where there is no kernel of ours.
void label_stats_by_aten(const LabelStatsOut& stats, const at::Tensor& exps_CV,
                         const at::Tensor& logits_CV, const at::Tensor& labels_C) {
  const at::Tensor logits = logits_CV.to(at::kFloat);
  const at::Tensor logprobs = logits - at::logsumexp(logits, {1}, /*keepdim=*/true);
  stats.correct_C.copy_(logits.argmax(1) == labels_C);
  stats.logprob_C.copy_(logprobs.gather(1, labels_C.unsqueeze(1)).squeeze(1));
  stats.mean_logprob_C.copy_(logprobs.mean(1));
  if (stats.mean_logit_C.defined()) stats.mean_logit_C.copy_(logits.mean(1));
  if (stats.log_sum_sq_C.defined()) stats.log_sum_sq_C.copy_(at::logsumexp(logprobs * 2, {1}));
  exps_CV.copy_(logprobs.exp());
  stats.entropy_C.copy_((logprobs * exps_CV).sum(1).neg_());
  stats.sum_of_exps_C.fill_(1);
}

void logit_gradient_by_aten(const at::Tensor& grad_CV, const at::Tensor& exps_CV, const at::Tensor&,
                            const at::Tensor& labels_C, const at::Tensor& grad_logprob_C,
                            const at::Tensor& grad_mean_logprob_C) {
  // d logp / d logits = onehot(label) - p, d mean(logp) / d logits = 1 / V - p
  const at::Tensor of_label = grad_logprob_C.unsqueeze(1);
  if (grad_mean_logprob_C.defined()) {
    const at::Tensor of_mean = grad_mean_logprob_C.unsqueeze(1);
    exps_CV.mul_((of_label + of_mean).neg_());
    exps_CV.add_(of_mean / static_cast<double>(exps_CV.size(1)));
  } else {
    exps_CV.mul_(of_label.neg());
  }
  exps_CV.scatter_add_(1, labels_C.unsqueeze(1), of_label);
  if (!grad_CV.is_alias_of(exps_CV)) grad_CV.copy_(exps_CV);
}

}  // namespace

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
  const auto label_stats = has_cpu_kernels(logits_) ? label_stats_out : label_stats_by_aten;
  label_stats(stats, exps_.narrow(0, 0, labels_C.size(0)), logits_CV, labels_C);
}

at::Tensor LogitChunks::scratch() const {
  if (exps_.is_alias_of(logits_)) return {};
  return exps_.flatten().view(logits_.scalar_type());
}

at::Tensor LogitChunks::gradient(const at::Tensor& labels_C, const LabelStatsOut& stats,
                                 const at::Tensor& grad_logprob_C,
                                 const at::Tensor& grad_mean_logprob_C) {
  const at::Tensor grad_CV = logits_.narrow(0, 0, labels_C.size(0));
  const auto logit_gradient =
      has_cpu_kernels(logits_) ? logit_gradient_out : logit_gradient_by_aten;
  logit_gradient(grad_CV, exps_.narrow(0, 0, labels_C.size(0)), stats.sum_of_exps_C, labels_C,
                 grad_logprob_C, grad_mean_logprob_C);
  return grad_CV;
}

}  // namespace tessera
