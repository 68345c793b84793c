// Online DPO: of two completions of a prompt the better one is to become more likely than the
// other. Source: OnlineDPOTrainer.training_step in trl/experimental/online_dpo.
//
// P pairs on this rank; a row is the chosen and then the rejected completion.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>

#include <algorithm>
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
    double scores = 0, margins = 0, ended = 0;
    for (int64_t i = 0; i < generation.size(); i += 2) {
      const double one = rollouts.reward(generation.rollouts[i]),
                   other = rollouts.reward(generation.rollouts[i + 1]);
      scores += one + other;
      margins += std::abs(one - other);
    }
    for (const Rollout& rollout : generation.rollouts) ended += rollout.truncated ? 0 : 1;
    return {.metrics = {{"objective/scores", scores / size},
                        {"objective/scores_margin", 2 * margins / size},
                        {"val/contain_eos_token", ended / size}}};
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
    const at::Tensor sum = losses(ahead_P, beta).sum();
    const auto all_pairs = static_cast<double>(std::max<int64_t>(1, batch.num_rows_of_all));
    MetricSums measured = measure(logps_S.detach(), ratios_S.detach(), batch, beta);
    measured.add(kLossMetric, sum, static_cast<double>(ahead_P.size(0)));
    return {sum / (all_pairs * static_cast<double>(share.num_microbatches)),
            measured.in_order(metrics()), models.policy.aux_loss()};
  }

 private:
  at::Tensor losses(const at::Tensor& ahead_P, double beta) const {
    if (is_ipo_) return (ahead_P - 1 / (2 * beta)).square();
    // -log sigmoid(x); from the threshold on, x alone is nearer than float64 can tell.
    return at::softplus(ahead_P * -beta, /*beta=*/1, /*threshold=*/40);
  }

  MetricSums measure(const at::Tensor& logps_S, const at::Tensor& ratios_S, const Batch& batch,
                     double beta) const {
    const c10::AutoGradMode no_grad(false);
    const auto num_documents = static_cast<double>(logps_S.size(0)), num_pairs = num_documents / 2;
    const Pair logps = Pair::of(logps_S), ratios = Pair::of(ratios_S);
    const at::Tensor cost = ratios_S.sum() * beta;
    MetricSums measured;
    measured.add("objective/kl", ratios_S.sum(), num_documents);
    measured.add("objective/entropy", logps_S.sum().neg(), num_documents);
    measured.add("objective/non_score_reward", cost.neg(), num_documents);
    measured.add("objective/rlhf_reward", batch.values_S.to(at::kDouble).sum() - cost,
                 num_documents);
    measured.add("rewards/chosen", ratios.chosen.sum() * beta, num_pairs);
    measured.add("rewards/rejected", ratios.rejected.sum() * beta, num_pairs);
    measured.add("rewards/margins", ratios.difference().sum() * beta, num_pairs);
    measured.add("rewards/accuracies", (ratios.difference() > 0).sum(at::kDouble), num_pairs);
    measured.add("logps/chosen", logps.chosen.sum(), num_pairs);
    measured.add("logps/rejected", logps.rejected.sum(), num_pairs);
    measured.add("beta", at::ones_like(logps_S).sum() * beta, num_documents);
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
