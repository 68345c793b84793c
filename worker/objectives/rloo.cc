// REINFORCE leave-one-out. Source: RLOOTrainer._compute_loss in trl/trainer/rloo_trainer.py.
//
// S completions on this rank, each with one probability ratio.
#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "worker/objectives/advantages.h"
#include "worker/objectives/clip_metrics.h"
#include "worker/objectives/objective.h"
#include "worker/objectives/online.h"
#include "worker/objectives/sequences.h"

namespace tessera {
namespace {

class Rloo : public Objective, public OnlineMethod {
 public:
  Rloo(const v1::JobSpec& spec, Collectives& data)
      : Objective(spec, Mean::kMicrobatches),
        data_(data),
        rloo_(spec.method().rloo()),
        epsilon_high_(rloo_.has_epsilon_high() ? rloo_.epsilon_high() : rloo_.epsilon()) {}

  const OnlineMethod* online() const override { return this; }

  Needs needs(const RolloutDataset&) const override {
    return {.old_logprobs = true,
            .reference_logprobs = rloo_.beta() != 0,
            .temperature = rloo_.temperature()};
  }

  GenerationTargets targets(const RolloutDataset& rollouts, const Generation& generation,
                            const GenerationScores& scores) const override {
    std::vector<double> rewards, costs;
    for (const Rollout& rollout : generation.rollouts) rewards.push_back(rollouts.reward(rollout));
    double divergence = 0;
    if (rloo_.beta() != 0) {
      for (const double kl : divergences(generation, scores)) {
        divergence += kl;
        costs.push_back(rloo_.beta() * kl);
      }
    }
    const std::vector<double> range(rloo_.reward_clip_range().begin(),
                                    rloo_.reward_clip_range().end());
    const Advantages advantages =
        compare_with_others(rewards, costs, generation.groups, generation.num_groups,
                            {.clip_range = range, .normalize = rloo_.normalize_advantages()});
    GenerationTargets targets;
    targets.advantages = {advantages.of_rollouts.begin(), advantages.of_rollouts.end()};
    targets.metrics = measure_generation(rollouts, generation, advantages);
    if (rloo_.beta() != 0) {
      const auto labels = static_cast<double>(std::max<int64_t>(1, generation.num_labels()));
      targets.metrics.emplace_back("kl", divergence / labels);
    }
    return targets;
  }

  ObjectiveOutput run(const Models& models, const Batch& batch,
                      const StepShare& share) const override {
    // Nothing holds the hidden states but what backward needs.
    const HeadOutput head = models.policy.head(models.policy.forward(batch, share.forward), batch,
                                               {.temperature = rloo_.temperature()});
    const std::vector<at::Tensor> sums =
        sum_by_document({head.logprobs_T, head.entropy_T}, batch).unbind(1);
    const at::Tensor old_S =
        sum_labels_by_document(batch.completions->old_logprobs_L.to(at::kDouble).unsqueeze(1),
                               batch)
            .squeeze(1);
    const at::Tensor ratio_S = at::exp(sums[0] - old_S);
    const at::Tensor advantages_S = batch.completions->advantages_S.to(at::kDouble);
    const at::Tensor clipped_S = ratio_S.clamp(1 - rloo_.epsilon(), 1 + epsilon_high_);
    const at::Tensor sum =
        at::minimum(ratio_S * advantages_S, clipped_S * advantages_S).sum().neg();
    const auto rows = static_cast<double>(std::max<int64_t>(1, batch.num_rows_of_all));
    MetricSums measured;
    measured.add(kLossMetric, sum, static_cast<double>(batch.num_sequences));
    measured.add("entropy", sums[1].sum(), count_labels(batch).sum());
    measure_ratios(ratio_S.detach(), advantages_S, batch, measured);
    return {sum / (rows * static_cast<double>(share.num_microbatches)),
            measured.in_order(metrics()), models.policy.aux_loss()};
  }

 private:
  // log p of the policy less that of the reference, of each completion.
  static std::vector<double> divergences(const Generation& generation,
                                         const GenerationScores& scores) {
    std::vector<double> sums;
    for (int64_t r = 0; r < generation.size(); ++r) {
      const int64_t first = generation.first_label(r), end = first + generation.labels_of(r);
      double sum = 0;
      for (int64_t i = first; i < end; ++i)
        sum += scores.old_logprobs[i] - scores.reference_logprobs[i];
      sums.push_back(sum);
    }
    return sums;
  }

  void measure_ratios(const at::Tensor& ratio_S, const at::Tensor& advantages_S, const Batch& batch,
                      MetricSums& measured) const {
    const c10::AutoGradMode no_grad(false);
    const at::Tensor low_S = (ratio_S < 1 - rloo_.epsilon()) * (advantages_S < 0),
                     high_S = (ratio_S > 1 + epsilon_high_) * (advantages_S > 0);
    measure_clipped({low_S.to(at::kDouble), high_S.to(at::kDouble), at::ones_like(ratio_S)}, batch,
                    data_, measured);
  }

  Collectives& data_;
  const v1::Rloo& rloo_;  // of the spec, which outlives this
  const double epsilon_high_;
};

}  // namespace

std::unique_ptr<Objective> make_rloo(const v1::JobSpec& spec, Collectives& data) {
  return std::make_unique<Rloo>(spec, data);
}

}  // namespace tessera
