// Online DPO: of two completions of a prompt the better one is to become more likely than the
// other. Source: OnlineDPOTrainer.training_step in trl/experimental/online_dpo.
//
// P pairs on this rank; a row is the chosen and then the rejected completion. Of a pair in which
// one cannot be judged nothing is learnt, and nothing is measured: its loss counts as 0. (TRL takes
// the reward of such a completion for 0.)
#include <ATen/TensorOperators.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/objectives/objective.h"
#include "worker/objectives/online.h"
#include "worker/objectives/preference_losses.h"
#include "worker/objectives/sequences.h"

namespace tessera {
namespace {

constexpr double kDefaultBeta = 0.1;

class OnlineDpo : public Objective, public OnlineMethod {
 public:
  explicit OnlineDpo(const v1::JobSpec& spec)
      : Objective(spec, Mean::kMicrobatches),
        betas_(spec.method().online_dpo().beta().begin(), spec.method().online_dpo().beta().end()),
        is_ipo_(spec.method().online_dpo().loss_type() == "ipo") {
    if (betas_.empty()) betas_.push_back(kDefaultBeta);
  }

  const OnlineMethod* online() const override { return this; }
  Needs needs(const RolloutDataset&) const override { return {}; }

  GenerationTargets targets(const RolloutDataset& rollouts, const Generation& generation,
                            const GenerationScores&) const override {
    const auto size = static_cast<double>(generation.size());
    double scores = 0, margins = 0, ended = 0, judged = 0;
    for (int64_t i = 0; i < generation.size(); i += 2) {
      const double one = rollouts.reward(generation.rollouts[i]),
                   other = rollouts.reward(generation.rollouts[i + 1]);
      if (std::isnan(one) || std::isnan(other)) continue;
      judged += 2;
      scores += one + other;
      margins += std::abs(one - other);
    }
    for (const Rollout& rollout : generation.rollouts) ended += rollout.truncated ? 0 : 1;
    const double left_out = judged == size ? std::nan("") : 1 - judged / size;
    return {.metrics = {{"objective/scores", scores / judged},
                        {"objective/scores_margin", 2 * margins / judged},
                        {"val/contain_eos_token", ended / size},
                        {"val/unjudged_pairs", left_out}}};
  }

  ObjectiveOutput run(const Models& models, const Batch& batch,
                      const StepShare& share) const override {
    // Before the policy's forward, which keeps what backward needs.
    const at::Tensor reference_S = reference_logps(models, batch);
    // Nothing holds the hidden states but what backward needs.
    const HeadOutput head = models.policy.head(models.policy.forward(batch, share.forward), batch);
    const at::Tensor logps_S = sum_by_document({head.logprobs_T}, batch).squeeze(1);
    const at::Tensor ratios_S = logps_S - reference_S;
    const double beta = betas_[std::min<size_t>(share.epoch, betas_.size() - 1)];
    const at::Tensor ahead_P = Pair::of(ratios_S).difference();
    const at::Tensor judged_P = judged_pairs(batch);
    const at::Tensor sum = (losses(ahead_P, beta) * judged_P).sum();
    const auto all_pairs = static_cast<double>(std::max<int64_t>(1, batch.num_rows_of_all));
    MetricSums measured = measure(logps_S.detach(), ratios_S.detach(), judged_P, batch, beta);
    measured.add(kLossMetric, sum, count_of(judged_P));
    return {sum / (all_pairs * static_cast<double>(share.num_microbatches)),
            measured.in_order(metrics()), models.policy.aux_loss()};
  }

 private:
  // float64 [P]: 1 where both completions have a reward, else 0.
  static at::Tensor judged_pairs(const Batch& batch) {
    // at::isnan has no kernel for tensors without data; NaN alone differs from itself.
    const at::Tensor difference_P = Pair::of(batch.values_S).difference();
    return difference_P.eq(difference_P).to(at::kDouble);
  }
  static at::Tensor count_of(const at::Tensor& judged_P) {
    return judged_P.sum().clamp_min(kLeastCount);
  }

  at::Tensor losses(const at::Tensor& ahead_P, double beta) const {
    if (is_ipo_) return (ahead_P - 1 / (2 * beta)).square();
    // -log sigmoid(x); from the threshold on, x alone is nearer than float64 can tell.
    return at::softplus(ahead_P * -beta, /*beta=*/1, /*threshold=*/40);
  }

  MetricSums measure(const at::Tensor& all_logps_S, const at::Tensor& all_ratios_S,
                     const at::Tensor& judged_P, const Batch& batch, double beta) const {
    const c10::AutoGradMode no_grad(false);
    const at::Tensor judged_S = judged_P.unsqueeze(1).expand({-1, 2}).reshape({-1});
    const at::Tensor num_pairs = count_of(judged_P), num_documents = num_pairs * 2;
    const at::Tensor logps_S = all_logps_S * judged_S, ratios_S = all_ratios_S * judged_S;
    const Pair logps = Pair::of(logps_S), ratios = Pair::of(ratios_S);
    const at::Tensor cost = ratios_S.sum() * beta;
    const at::Tensor rewards_S = batch.values_S.to(at::kDouble).masked_fill(judged_S.eq(0), 0);
    MetricSums measured;
    measured.add("objective/kl", ratios_S.sum(), num_documents);
    measured.add("objective/entropy", logps_S.sum().neg(), num_documents);
    measured.add("objective/non_score_reward", cost.neg(), num_documents);
    measured.add("objective/rlhf_reward", rewards_S.sum() - cost, num_documents);
    measured.add("rewards/chosen", ratios.chosen.sum() * beta, num_pairs);
    measured.add("rewards/rejected", ratios.rejected.sum() * beta, num_pairs);
    measured.add("rewards/margins", ratios.difference().sum() * beta, num_pairs);
    measured.add("rewards/accuracies", (ratios.difference() > 0).sum(at::kDouble), num_pairs);
    measured.add("logps/chosen", logps.chosen.sum(), num_pairs);
    measured.add("logps/rejected", logps.rejected.sum(), num_pairs);
    measured.add("beta", num_documents * beta, num_documents);
    return measured;
  }

  std::vector<double> betas_;  // one for each pass over the data, the last one for all that follow
  const bool is_ipo_;
};

}  // namespace

std::unique_ptr<Objective> make_online_dpo(const v1::JobSpec& spec) {
  return std::make_unique<OnlineDpo>(spec);
}

}  // namespace tessera
