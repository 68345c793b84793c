// Group-relative policy optimisation. Source: GRPOTrainer._compute_loss in
// trl/trainer/grpo_trainer.py; docs/methods.md has the formulas.
//
// S completions on this rank, L their labels. What is summed over a completion's labels is the same
// on all ranks that share the stream, and the losses are made of such sums.
#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/log.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "proto/spec/online_relations.h"
#include "worker/objectives/advantages.h"
#include "worker/objectives/clip_metrics.h"
#include "worker/objectives/entropy_mask.h"
#include "worker/objectives/importance.h"
#include "worker/objectives/objective.h"
#include "worker/objectives/online.h"
#include "worker/objectives/sequences.h"

namespace tessera {
namespace {

// VESPO's bounds of log-ratios.
constexpr double kMostLogRatio = 20;
const double kLeastLogWeight = std::log(1e-8);

RewardScale scale_of(std::string_view name) {
  if (name == "group") return RewardScale::kGroup;
  return name == "batch" ? RewardScale::kBatch : RewardScale::kNone;
}

ImportanceOptions importance_options(const v1::Grpo& grpo) {
  const std::string_view mode = grpo.vllm_importance_sampling_mode();
  return {.by_sequence = mode.starts_with("sequence"),
          .masks = mode.ends_with("mask"),
          .least = grpo.vllm_importance_sampling_clip_min(),
          .most = grpo.vllm_importance_sampling_clip_max()};
}

// 0 in place of what is infinite or NaN.
at::Tensor finite(const at::Tensor& x) {
  return at::where(x.abs() < std::numeric_limits<double>::infinity(), x, at::zeros_like(x));
}

// Of a microbatch. float64; those of L are of labels.
struct Tokens {
  at::Tensor logps_L, entropy_L;
  at::Tensor log_ratio_L;  // against the policy before it was trained on them
  at::Tensor advantages_S, advantages_L;
  at::Tensor labels_S;
};

class Grpo : public Objective, public OnlineMethod {
 public:
  Grpo(const v1::JobSpec& spec, Collectives& data)
      : Objective(spec, Mean::kMicrobatches),
        data_(data),
        grpo_(spec.method().grpo()),
        type_(grpo_.loss_type()),
        by_sequence_(grpo_.importance_sampling_level() == "sequence"),
        epsilon_high_(grpo_.has_epsilon_high() ? grpo_.epsilon_high() : grpo_.epsilon()),
        plan_(spec::generation_plan(spec)),
        accumulation_(spec.training().gradient_accumulation_steps()) {}

  const OnlineMethod* online() const override { return this; }

  Needs needs(const RolloutDataset& rollouts) const override {
    // Else the policy is still what it was then whenever it comes to them.
    const bool changes = accumulation_ % (plan_.steps_per_generation * plan_.num_passes) != 0;
    return {.old_logprobs = changes || corrects(rollouts),
            .reference_logprobs = grpo_.beta() != 0,
            .temperature = grpo_.temperature()};
  }

  GenerationTargets targets(const RolloutDataset& rollouts, const Generation& generation,
                            const GenerationScores& scores) const override {
    const Advantages advantages = compare(rollouts, generation);
    GenerationTargets targets;
    targets.advantages = {advantages.of_rollouts.begin(), advantages.of_rollouts.end()};
    targets.metrics = measure_generation(rollouts, generation, advantages);
    if (rollouts.has_logprobs())
      targets.sampling_logprobs = sampling_logprobs(rollouts, generation);
    if (!corrects(rollouts)) return targets;
    ImportanceWeights weights = weigh_samples(generation, scores.old_logprobs,
                                              targets.sampling_logprobs, importance_options(grpo_));
    targets.weights = std::move(weights.of_labels);
    targets.metrics.insert(targets.metrics.end(), weights.metrics.begin(), weights.metrics.end());
    return targets;
  }

  ObjectiveOutput run(const Models& models, const Batch& batch,
                      const StepShare& share) const override {
    // Nothing holds the hidden states but what backward needs.
    const HeadOutput head = models.policy.head(models.policy.forward(batch, share.forward), batch,
                                               {.temperature = grpo_.temperature()});
    const Tokens tokens = tokens_of(head, batch);
    MetricSums measured;
    const at::Tensor sums_S = losses(tokens, batch, share, measured);
    const at::Tensor of_microbatch =
        by_length() ? (sums_S / tokens.labels_S.clamp_min(1)).sum() * scale(batch, share)
                    : sums_S.sum() * scale(batch, share);
    measured.add("entropy", sum_labels(tokens.entropy_L, batch).sum(), tokens.labels_S.sum());
    // What ranks have of it adds up to the microbatch's.
    measured.add(kLossMetric, of_microbatch, 1. / data_.size());
    return {of_microbatch / static_cast<double>(share.num_microbatches),
            measured.in_order(metrics()), models.policy.aux_loss()};
  }

 private:
  // Whether losses are weighed for how completions were sampled.
  bool corrects(const RolloutDataset& rollouts) const {
    return rollouts.has_logprobs() && grpo_.vllm_importance_sampling_correction();
  }

  Advantages compare(const RolloutDataset& rollouts, const Generation& generation) const {
    if (grpo_.multi_objective_aggregation() == "normalize_then_sum")
      return compare_each_in_groups(generation, rollouts.options().reward_weights);
    std::vector<double> rewards;
    for (const Rollout& rollout : generation.rollouts) rewards.push_back(rollouts.reward(rollout));
    return compare_in_groups(rewards, generation.groups, generation.num_groups,
                             scale_of(grpo_.scale_rewards()));
  }

  static std::vector<float> sampling_logprobs(const RolloutDataset& rollouts,
                                              const Generation& generation) {
    std::vector<float> values;
    for (const Rollout& rollout : generation.rollouts) {
      for (size_t i = 0; i < rollout.completion.size(); ++i) {
        if (rollouts.counts(rollout, i)) values.push_back(rollout.logprobs[i]);
      }
    }
    return values;
  }

  static at::Tensor sum_labels(const at::Tensor& values_L, const Batch& batch) {
    return sum_labels_by_document(values_L.unsqueeze(1), batch).squeeze(1);
  }

  Tokens tokens_of(const HeadOutput& head, const Batch& batch) const {
    const CompletionTargets& known = *batch.completions;
    Tokens tokens;
    tokens.logps_L = head.logprobs_T.index_select(0, batch.label_rows_L).to(at::kDouble);
    tokens.entropy_L = head.entropy_T.index_select(0, batch.label_rows_L).detach().to(at::kDouble);
    tokens.log_ratio_L =
        tokens.logps_L - (known.old_logprobs_L.defined() ? known.old_logprobs_L.to(at::kDouble)
                                                         : tokens.logps_L.detach());
    tokens.advantages_S = known.advantages_S.to(at::kDouble);
    tokens.advantages_L = of_labels(tokens.advantages_S, batch);
    tokens.labels_S = count_labels(batch);
    return tokens;
  }

  // A value of completions, for each of their labels.
  static at::Tensor of_labels(const at::Tensor& values_S, const Batch& batch) {
    return values_S.index_select(0, batch.label_documents_L);
  }

  // The losses of each completion's labels, summed: [S].
  at::Tensor losses(const Tokens& tokens, const Batch& batch, const StepShare& share,
                    MetricSums& measured) const {
    // Of labels, or of completions.
    const at::Tensor ratio =
        by_sequence_ ? at::exp(sum_labels(tokens.log_ratio_L, batch) / tokens.labels_S.clamp_min(1))
                     : at::exp(tokens.log_ratio_L);
    const at::Tensor factors_L = factors(tokens, batch, share);
    at::Tensor sums_S;
    if (type_ == "cispo" || type_ == "vespo") {
      const at::Tensor weights_L = likelihood_weights(ratio.detach(), tokens, batch, measured);
      sums_S =
          sum_labels(tokens.logps_L * weights_L.neg() * tokens.advantages_L * factors_L, batch);
    } else if (by_sequence_) {
      sums_S = ratio_losses(ratio, tokens.advantages_S) * sum_labels(factors_L, batch);
    } else {
      sums_S = sum_labels(ratio_losses(ratio, tokens.advantages_L) * factors_L, batch);
    }
    measure_clipping(ratio.detach(), tokens, batch, measured);
    if (grpo_.beta() == 0) return sums_S;
    const at::Tensor kl_S = divergences(ratio, tokens, batch);
    measured.add("kl", kl_S.sum(), tokens.labels_S.sum().clamp_min(kLeastCount));
    return sums_S + kl_S * grpo_.beta();
  }

  // What ratios make of advantages; both of the same shape.
  at::Tensor ratio_losses(const at::Tensor& ratio, const at::Tensor& advantages) const {
    if (type_ == "sapo") {
      const at::Tensor temperatures =
          at::where(advantages > 0, at::ones_like(advantages) * grpo_.sapo_temperature_pos(),
                    at::ones_like(advantages) * grpo_.sapo_temperature_neg());
      return (at::sigmoid(temperatures * (ratio - 1)) * 4 / temperatures * advantages).neg();
    }
    return at::minimum(bounded(ratio) * advantages,
                       ratio.clamp(1 - grpo_.epsilon(), 1 + epsilon_high_) * advantages)
        .neg();
  }

  at::Tensor bounded(const at::Tensor& ratio) const {
    return grpo_.has_delta() ? ratio.clamp_max(grpo_.delta()) : ratio;
  }

  // What log-probabilities count, of losses without another gradient: [L].
  at::Tensor likelihood_weights(const at::Tensor& ratio, const Tokens& tokens, const Batch& batch,
                                MetricSums& measured) const {
    if (type_ == "cispo") {
      const at::Tensor weights = ratio.clamp_max(epsilon_high_);
      return by_sequence_ ? of_labels(weights, batch) : weights;
    }
    const at::Tensor phi_S = gamma_weights(tokens, batch);
    measured.add("vespo/phi_seq_mean", phi_S.sum(), static_cast<double>(phi_S.size(0)));
    return of_labels(phi_S, batch);
  }

  // VESPO's: with w the ratio of the whole completion, exp(l + k log w - l w).
  at::Tensor gamma_weights(const Tokens& tokens, const Batch& batch) const {
    const c10::AutoGradMode no_grad(false);
    at::Tensor log_w_L = tokens.log_ratio_L.detach().clamp(-kMostLogRatio, kMostLogRatio);
    if (batch.completions->weights_L.defined()) {
      log_w_L = log_w_L + at::log(batch.completions->weights_L.to(at::kDouble))
                              .clamp(kLeastLogWeight, kMostLogRatio);
    }
    const at::Tensor log_w_S = sum_labels(log_w_L, batch).clamp(kLeastLogWeight, kMostLogRatio);
    const at::Tensor one_S = at::ones_like(log_w_S), ahead_S = tokens.advantages_S >= 0;
    const at::Tensor k_S =
        at::where(ahead_S, one_S * grpo_.vespo_k_pos(), one_S * grpo_.vespo_k_neg());
    const at::Tensor l_S =
        at::where(ahead_S, one_S * grpo_.vespo_lambda_pos(), one_S * grpo_.vespo_lambda_neg())
            .clamp_min(1e-4);
    return finite(at::exp(l_S + k_S * log_w_S - l_S * at::exp(log_w_S)));
  }

  // What the losses of labels are multiplied with, but for the divergence: [L].
  at::Tensor factors(const Tokens& tokens, const Batch& batch, const StepShare& share) const {
    const c10::AutoGradMode no_grad(false);
    const CompletionTargets& known = *batch.completions;
    at::Tensor factors_L = at::ones_like(tokens.entropy_L);
    if (grpo_.has_off_policy_mask_threshold())
      factors_L = factors_L * of_labels(near_policy(tokens, batch), batch);
    if (grpo_.top_entropy_quantile() < 1) {
      factors_L = factors_L * high_entropy_mask(tokens.entropy_L.to(at::kFloat),
                                                grpo_.top_entropy_quantile(),
                                                share.num_microbatch_labels, batch, data_);
    }
    if (known.weights_L.defined() && type_ != "vespo") factors_L = factors_L * known.weights_L;
    return factors_L;
  }

  // 0 for completions to be avoided that the policy is far from already, else 1.
  at::Tensor near_policy(const Tokens& tokens, const Batch& batch) const {
    const CompletionTargets& known = *batch.completions;
    const at::Tensor left_L =
        known.sampling_logprobs_L.defined()
            ? finite(known.sampling_logprobs_L.to(at::kDouble) - tokens.logps_L.detach())
            : tokens.log_ratio_L.detach().neg();
    const at::Tensor mean_S = sum_labels(left_L, batch) / tokens.labels_S.clamp_min(1);
    return ((tokens.advantages_S >= 0) + (mean_S <= grpo_.off_policy_mask_threshold()))
        .to(at::kBool)
        .to(at::kDouble);
  }

  // From the reference, of each completion's labels, summed: [S].
  at::Tensor divergences(const at::Tensor& ratio, const Tokens& tokens, const Batch& batch) const {
    const at::Tensor behind_L =
        batch.completions->reference_logprobs_L.to(at::kDouble) - tokens.logps_L;
    const at::Tensor kl_L = at::exp(behind_L) - behind_L - 1;
    if (!grpo_.use_bias_correction_kl()) return sum_labels(kl_L, batch);
    if (by_sequence_) return ratio * sum_labels(kl_L, batch);
    return sum_labels(ratio * kl_L, batch);
  }

  // Whether a completion counts by the mean of its labels.
  bool by_length() const { return type_ == "grpo" || type_ == "sapo"; }

  // What makes the sum over all ranks' completions the microbatch's loss, of which the step's is
  // the mean.
  double scale(const Batch& batch, const StepShare& share) const {
    const auto rows = static_cast<double>(std::max<int64_t>(1, batch.num_rows_of_all));
    if (by_length() || type_ == "luspo") return 1 / rows;
    if (type_ == "bnpo")
      return 1. / static_cast<double>(std::max<int64_t>(1, share.num_microbatch_labels));
    if (type_ == "dr_grpo") return 1 / (rows * grpo_.max_completion_length());
    return static_cast<double>(plan_.steps_per_generation) /
           static_cast<double>(std::max<int64_t>(1, batch.completions->num_generation_labels));
  }

  void measure_clipping(const at::Tensor& ratio, const Tokens& tokens, const Batch& batch,
                        MetricSums& measured) const {
    const c10::AutoGradMode no_grad(false);
    const at::Tensor& advantages = by_sequence_ ? tokens.advantages_S : tokens.advantages_L;
    // Of flags of completions or labels: how many of each completion are set, of how many.
    const auto counted = [&](const at::Tensor& flags) {
      return by_sequence_ ? flags.to(at::kDouble) : sum_labels(flags.to(at::kDouble), batch);
    };
    const at::Tensor sizes_S = by_sequence_ ? at::ones_like(tokens.labels_S) : tokens.labels_S;
    if (type_ == "cispo") {
      const at::Tensor clipped_S = counted((ratio > epsilon_high_) * (advantages > 0));
      measured.add("cispo_clip_ratio", clipped_S.sum(), sizes_S.sum().clamp_min(kLeastCount));
    }
    if (type_ == "cispo" || type_ == "vespo" || type_ == "sapo") return;
    const at::Tensor low = (bounded(ratio) < 1 - grpo_.epsilon()) * (advantages < 0);
    const at::Tensor high = (bounded(ratio) > 1 + epsilon_high_) * (advantages > 0);
    measure_clipped({counted(low), counted(high), sizes_S}, batch, data_, measured);
  }

  Collectives& data_;
  const v1::Grpo& grpo_;  // of the spec, which outlives this
  const std::string_view type_;
  const bool by_sequence_;
  const double epsilon_high_;
  const spec::GenerationPlan plan_;
  const int64_t accumulation_;
};

}  // namespace

std::unique_ptr<Objective> make_grpo(const v1::JobSpec& spec, Collectives& data) {
  return std::make_unique<Grpo>(spec, data);
}

}  // namespace tessera
