// Kahneman-Tversky optimisation. Source: KTOTrainer._compute_loss in trl/trainer/kto_trainer.py.
//
// S documents, one a row; y_S is 1 where the completion is desirable, else 0.
#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker/model/dropout.h"
#include "worker/objectives/objective.h"
#include "worker/objectives/sequences.h"

namespace tessera {
namespace {

constexpr uint64_t kMismatchedPass = 0x6B6C;  // "kl": its draws are others than the policy's

// Sums over the rows of all ranks, float64 scalars.
struct AllRows {
  at::Tensor desirable, undesirable;                  // how many
  at::Tensor desirable_rewards, undesirable_rewards;  // sums
  at::Tensor divergence;                              // of mismatched rows
};

class Kto : public Objective {
 public:
  Kto(const v1::JobSpec& spec, Collectives& data)
      : Objective(spec, Mean::kMicrobatches), data_(data), kto_(spec.method().kto()) {}

  ObjectiveOutput run(const Models& models, const Batch& batch,
                      const StepShare& share) const override {
    // Before the forward that is trained, which keeps what backward needs.
    const at::Tensor divergence_S = mismatched_logratios(models, batch, share.forward);
    const at::Tensor reference_S = reference_logps(models, batch);
    // Nothing holds the hidden states but what backward needs.
    const HeadOutput head = models.policy.head(models.policy.forward(batch, share.forward), batch,
                                               {.mean_logits = true});
    const std::vector<at::Tensor> sums =
        sum_by_document({head.logprobs_T, head.entropy_T, head.mean_logits_T}, batch).unbind(1);
    const at::Tensor logratios_S = log_ratios(sums[0], reference_S, batch);
    const at::Tensor y_S = batch.values_S.to(at::kDouble);
    const AllRows all = all_rows(y_S, logratios_S.detach(), divergence_S);
    const auto num_rows = static_cast<double>(std::max<int64_t>(1, batch.num_rows_of_all));
    const at::Tensor kl = (all.divergence / num_rows).clamp_min(0);
    const at::Tensor sum = losses(logratios_S, y_S, kl).sum();
    MetricSums measured;
    measured.add(kLossMetric, sum, static_cast<double>(batch.num_sequences));
    measured.add("kl", kl, 1);
    measure_tokens(batch, sums[1], sums[2], y_S, measured);
    measure_rows(logratios_S.detach() * kto_.beta(), sums[0].detach(), y_S, all, measured);
    return {sum / (num_rows * static_cast<double>(share.num_microbatches)),
            measured.in_order(metrics()), models.policy.aux_loss()};
  }

 private:
  // Of prompts with the completions of other rows: log p of the policy less that of the reference.
  // Zeros where the loss needs none.
  at::Tensor mismatched_logratios(const Models& models, const Batch& batch,
                                  ForwardOptions forward) const {
    if (batch.mismatched == nullptr)
      return at::zeros({batch.num_sequences}, batch.labels_T.options().dtype(at::kDouble));
    forward.aux_loss_weight = 0;
    forward.draw = make_draw({forward.draw, kMismatchedPass});
    const at::Tensor reference_S = reference_logps(models, *batch.mismatched);
    return log_ratios(score_completions(models.policy, *batch.mismatched, forward), reference_S,
                      *batch.mismatched);
  }

  at::Tensor losses(const at::Tensor& logratios_S, const at::Tensor& y_S,
                    const at::Tensor& kl) const {
    // kl is 0 with apo_zero_unpaired, whose losses are the same but for it.
    const at::Tensor x_S = (logratios_S - kl) * kto_.beta();
    return at::where(y_S > 0.5, kto_.desirable_weight() * (1 - at::sigmoid(x_S)),
                     kto_.undesirable_weight() * at::sigmoid(x_S));
  }

  AllRows all_rows(const at::Tensor& y_S, const at::Tensor& logratios_S,
                   const at::Tensor& divergence_S) const {
    const c10::AutoGradMode no_grad(false);
    const at::Tensor rewards_S = logratios_S * kto_.beta();
    at::Tensor sums =
        at::stack({y_S, 1 - y_S, rewards_S * y_S, rewards_S * (1 - y_S), divergence_S}).sum(1);
    data_.all_reduce_sum(sums);
    const std::vector<at::Tensor> all = sums.unbind();
    return {all[0], all[1], all[2], all[3], all[4]};
  }

  static void measure_tokens(const Batch& batch, const at::Tensor& entropy_S,
                             const at::Tensor& mean_logits_S, const at::Tensor& y_S,
                             MetricSums& measured) {
    const at::Tensor labels_S = count_labels(batch);
    measured.add("entropy", entropy_S.sum(), labels_S.sum());
    measured.add("logits/chosen", (mean_logits_S * y_S).sum(), (labels_S * y_S).sum());
    measured.add("logits/rejected", (mean_logits_S * (1 - y_S)).sum(),
                 (labels_S * (1 - y_S)).sum());
  }

  static void measure_rows(const at::Tensor& rewards_S, const at::Tensor& logps_S,
                           const at::Tensor& y_S, const AllRows& all, MetricSums& measured) {
    const at::Tensor n_S = 1 - y_S;
    measured.add("rewards/chosen", (rewards_S * y_S).sum(), y_S.sum());
    measured.add("rewards/rejected", (rewards_S * n_S).sum(), n_S.sum());
    measured.add("logps/chosen", (logps_S * y_S).sum(), y_S.sum());
    measured.add("logps/rejected", (logps_S * n_S).sum(), n_S.sum());
    // Every rank knows it: a count of 1 on each, where there are rows of both kinds.
    const at::Tensor margin = all.desirable_rewards / all.desirable.clamp_min(1) -
                              all.undesirable_rewards / all.undesirable.clamp_min(1);
    const at::Tensor has_both = ((all.desirable > 0) * (all.undesirable > 0)).to(at::kDouble);
    measured.add("rewards/margins", margin * has_both, has_both);
  }

  Collectives& data_;
  const v1::Kto& kto_;  // of the spec, which outlives this
};

}  // namespace

std::unique_ptr<Objective> make_kto(const v1::JobSpec& spec, Collectives& data) {
  return std::make_unique<Kto>(spec, data);
}

}  // namespace tessera
