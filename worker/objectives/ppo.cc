// Proximal policy optimisation. Source: PPOTrainer.train in trl/experimental/ppo/ppo_trainer.py of
// TRL 1.12; docs/methods.md has the formulas.
//
// L labels and S completions on this rank; V as worker/objectives/values.h has it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "worker/objectives/advantages.h"
#include "worker/objectives/gae.h"
#include "worker/objectives/objective.h"
#include "worker/objectives/online.h"
#include "worker/objectives/values.h"

namespace tessera {
namespace {

double at_least_one(int64_t count) { return static_cast<double>(std::max<int64_t>(1, count)); }

double context_ranks(const Batch& batch) {
  return batch.documents.part ? static_cast<double>(batch.documents.part->size) : 1;
}

// The sum of what a rank has of it over all ranks is the microbatch's: a loss that is a mean is
// added with the rank's share of the count.
class Ppo : public Objective, public OnlineMethod {
 public:
  Ppo(const v1::JobSpec& spec, Collectives& data)
      : Objective(spec, Mean::kMicrobatches), data_(data), ppo_(spec.method().ppo()) {}

  const OnlineMethod* online() const override { return this; }

  Needs needs(const RolloutDataset&) const override {
    return {.old_logprobs = true,
            .reference_logprobs = true,
            .values = true,
            .temperature = ppo_.temperature()};
  }

  GenerationTargets targets(const RolloutDataset& rollouts, const Generation& generation,
                            const GenerationScores& scores) const override {
    std::vector<double> worth;
    for (const Rollout& rollout : generation.rollouts) worth.push_back(rollouts.reward(rollout));
    TokenAdvantages advantages = estimate_advantages(generation, worth, scores,
                                                     {.kl_coef = ppo_.kl_coef(),
                                                      .k3 = ppo_.kl_estimator() == "k3",
                                                      .whiten_rewards = ppo_.whiten_rewards(),
                                                      .gamma = ppo_.gamma(),
                                                      .lam = ppo_.lam()});
    GenerationTargets targets;
    targets.metrics = measure(rollouts, generation, mean_of(worth), advantages);
    targets.label_advantages = std::move(advantages.advantages);
    targets.returns = std::move(advantages.returns);
    targets.end_returns = std::move(advantages.end_returns);
    return targets;
  }

  ObjectiveOutput run(const Models& models, const Batch& batch,
                      const StepShare& share) const override {
    // Nothing holds the hidden states but what backward needs.
    const HeadOutput head = models.policy.head(models.policy.forward(batch, share.forward), batch,
                                               {.temperature = ppo_.temperature()});
    const CompletionTargets& known = *batch.completions;
    const at::Tensor logps_L = head.logprobs_T.index_select(0, batch.label_rows_L).to(at::kDouble);
    const at::Tensor ahead_L = logps_L - known.old_logprobs_L.to(at::kDouble);
    const at::Tensor ratio_L = at::exp(ahead_L);
    const at::Tensor costs_L = known.advantages_L.to(at::kDouble).neg();
    const at::Tensor plain_L = costs_L * ratio_L;
    const at::Tensor clipped_L =
        costs_L * ratio_L.clamp(1 - ppo_.cliprange(), 1 + ppo_.cliprange());
    const at::Tensor sum = at::maximum(plain_L, clipped_L).sum();
    const at::Tensor of_microbatch = sum / at_least_one(share.num_microbatch_labels);
    MetricSums measured;
    measured.add(kLossMetric, of_microbatch, 1 / (data_.size() * context_ranks(batch)));
    const auto labels = static_cast<double>(batch.num_labels);
    measured.add("loss/policy_avg", sum, labels);
    measured.add("policy/clipfrac_avg", (clipped_L > plain_L).sum(), labels);
    measured.add("policy/entropy_avg", head.entropy_T.detach().sum(at::kDouble), labels);
    measure_ratios(ahead_L.detach(), ratio_L.detach(), batch, measured);
    return {of_microbatch / static_cast<double>(share.num_microbatches),
            measured.in_order(metrics()), models.policy.aux_loss()};
  }

  ObjectiveOutput run_value(const Models& models, const Batch& batch,
                            const StepShare& share) const override {
    const CompletionTargets& known = *batch.completions;
    const at::Tensor values_V =
        predict_values(*models.value, batch, share.value_forward).to(at::kDouble);
    const at::Tensor old_V = at::cat({known.values_L, known.end_values_S}).to(at::kDouble);
    const at::Tensor returns_V = at::cat({known.returns_L, known.end_returns_S}).to(at::kDouble);
    const at::Tensor counts_V = value_counts(batch);
    const at::Tensor near_V = at::minimum(at::maximum(values_V, old_V - ppo_.cliprange_value()),
                                          old_V + ppo_.cliprange_value());
    const at::Tensor plain_V = (values_V - returns_V).square(),
                     clipped_V = (near_V - returns_V).square();
    const at::Tensor sum = (at::maximum(plain_V, clipped_V) * counts_V).sum() / 2;
    const at::Tensor of_microbatch = sum * (ppo_.vf_coef() / at_least_one(known.num_values));
    MetricSums measured;
    measured.add(kLossMetric, of_microbatch, 0);  // the policy's has counted the microbatch
    measured.add("loss/value_avg", sum, counts_V.sum());
    measured.add("val/clipfrac_avg", ((clipped_V > plain_V) * counts_V).sum(), counts_V.sum());
    return {of_microbatch / static_cast<double>(share.num_microbatches),
            measured.in_order(metrics())};
  }

 private:
  std::vector<std::pair<std::string, double>> measure(const RolloutDataset& rollouts,
                                                      const Generation& generation, double score,
                                                      const TokenAdvantages& advantages) const {
    // There are no groups.
    auto metrics = measure_generation(
        rollouts, generation,
        {.of_rollouts = {}, .share_without_deviation = std::numeric_limits<double>::quiet_NaN()});
    const auto ended = std::ranges::count(generation.rollouts, false, &Rollout::truncated);
    const double cost = ppo_.kl_coef() * advantages.mean_kl;
    metrics.insert(metrics.end(), {{"objective/kl", advantages.mean_kl},
                                   {"objective/entropy", advantages.mean_entropy},
                                   {"objective/non_score_reward", -cost},
                                   {"objective/scores", score},
                                   {"objective/rlhf_reward", score - cost},
                                   {"val/num_eos_tokens", static_cast<double>(ended)}});
    return metrics;
  }

  // As TRL, which pads completions to the longest one of their generation: behind the end of one
  // ratios are 1.
  static void measure_ratios(const at::Tensor& ahead_L, const at::Tensor& ratio_L,
                             const Batch& batch, MetricSums& measured) {
    const double positions =
        static_cast<double>(batch.num_sequences * batch.completions->longest_labels) /
        context_ranks(batch);
    measured.add("policy/approxkl_avg", ahead_L.square().sum() / 2, positions);
    measured.add("val/ratio", (ratio_L - 1).sum() + positions, positions);
  }

  Collectives& data_;
  const v1::Ppo& ppo_;  // of the spec, which outlives this
};

}  // namespace

std::unique_ptr<Objective> make_ppo(const v1::JobSpec& spec, Collectives& data) {
  return std::make_unique<Ppo>(spec, data);
}

}  // namespace tessera
