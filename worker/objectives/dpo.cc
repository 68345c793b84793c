// Direct preference optimisation. Source: DPOTrainer._compute_loss in trl/trainer/dpo_trainer.py.
#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string>
#include <vector>

#include "worker/objectives/objective.h"
#include "worker/objectives/preference_losses.h"
#include "worker/objectives/sequences.h"

namespace tessera {
namespace {

constexpr char kAot[] = "aot", kAotUnpaired[] = "aot_unpaired", kSft[] = "sft";

// What the policy makes of each document, [S] each and over all of its tokens.
struct PolicySums {
  at::Tensor logps;                          // as the loss takes them
  at::Tensor logprobs;                       // of all labels, summed
  at::Tensor entropy, correct, mean_logits;  // sums over labels
  at::Tensor aligned;  // of log p less log sum p^2, summed; undefined without weighting
  at::Tensor labels;   // how many
};

// Losses of this rank's pairs, and of all ranks' pairs together.
struct Losses {
  at::Tensor own_P;   // the loss is their mean over all ranks' pairs, and
  at::Tensor shared;  // this, which all ranks know; scalar or undefined
};

class Dpo : public Objective {
 public:
  Dpo(const v1::JobSpec& spec, Collectives& data)
      : Objective(spec, Mean::kMicrobatches),
        data_(data),
        options_(spec.method().dpo()),
        tail_alpha_(spec.method().dpo().has_ld_alpha() ? spec.method().dpo().ld_alpha() : 1),
        use_weighting_(spec.method().dpo().use_weighting()) {
    const v1::Dpo& dpo = spec.method().dpo();
    for (int i = 0; i < dpo.loss_type_size(); ++i) {
      const double weight = i < dpo.loss_weights_size() ? dpo.loss_weights(i) : 1;
      losses_.push_back({dpo.loss_type(i), pair_loss(dpo.loss_type(i)), weight});
    }
    if (losses_.empty()) losses_.push_back({"sigmoid", pair_loss("sigmoid"), 1});
  }

  ObjectiveOutput run(const Models& models, const Batch& batch,
                      const StepShare& share) const override {
    // Before the policy's forward, which keeps what backward needs.
    const at::Tensor reference_S = reference_logps(models, batch, tail_alpha_);
    const PolicySums policy = run_policy(models.policy, batch, share.forward);
    const PairTerms terms = terms_of(policy, reference_S, batch);
    const Losses losses = losses_of(policy, reference_S, terms, batch);
    const auto num_pairs = static_cast<double>(std::max<int64_t>(1, batch.num_rows_of_all));
    at::Tensor loss = losses.own_P.sum() / num_pairs;
    if (losses.shared.defined()) loss = loss + losses.shared;
    MetricSums measured = measure(policy, terms);
    const auto own_pairs = static_cast<double>(batch.num_sequences / 2);
    at::Tensor own_sum = losses.own_P.sum();
    if (losses.shared.defined()) own_sum = own_sum + losses.shared * own_pairs;
    measured.add(kLossMetric, own_sum, own_pairs);
    return {loss / static_cast<double>(share.num_microbatches), measured.in_order(metrics()),
            models.policy.aux_loss()};
  }

 private:
  struct WeightedLoss {
    std::string type;
    PairLoss loss;  // null: of all pairs together
    double weight;
  };

  PolicySums run_policy(DecoderModel& policy, const Batch& batch,
                        const ForwardOptions& forward) const {
    // Nothing holds the hidden states but what backward needs.
    const HeadOutput head = policy.head(policy.forward(batch, forward), batch,
                                        {.mean_logits = true, .log_sum_sq_probs = use_weighting_});
    std::vector<at::Tensor> columns{head.logprobs_T, head.entropy_T, head.correct_T,
                                    head.mean_logits_T};
    if (tail_alpha_ != 1) columns.push_back(head.logprobs_T * tail_weights(batch, tail_alpha_));
    if (use_weighting_) columns.push_back(head.logprobs_T.detach() - head.log_sum_sq_probs_T);
    const std::vector<at::Tensor> sums = sum_by_document(columns, batch).unbind(1);
    return {.logps = sums[tail_alpha_ != 1 ? 4 : 0],
            .logprobs = sums[0],
            .entropy = sums[1].detach(),
            .correct = sums[2].detach(),
            .mean_logits = sums[3].detach(),
            .aligned = use_weighting_ ? sums.back().detach() : at::Tensor(),
            .labels = count_labels(batch)};
  }

  PairTerms terms_of(const PolicySums& policy, const at::Tensor& reference_S,
                     const Batch& batch) const {
    const at::Tensor logratios_S = log_ratios(policy.logps, reference_S, batch);
    return {.logratios = Pair::of(logratios_S),
            .scores = Pair::of(divergence_scores(logratios_S, options_)),
            .lengths = Pair::of(batch.completion_tokens_S.to(at::kDouble).clamp_min(1))};
  }

  Losses losses_of(const PolicySums& policy, const at::Tensor& reference_S, const PairTerms& terms,
                   const Batch& batch) const {
    Losses losses{at::zeros_like(terms.scores.chosen), {}};
    for (const WeightedLoss& each : losses_) {
      if (each.loss != nullptr) {
        losses.own_P = losses.own_P + each.loss(terms, options_) * each.weight;
        continue;
      }
      const at::Tensor of_all = each.type == kSft
                                    ? likelihood_loss(policy, batch)
                                    : transport_loss(each.type, policy, reference_S, batch);
      losses.shared =
          losses.shared.defined() ? losses.shared + of_all * each.weight : of_all * each.weight;
    }
    if (use_weighting_) weight(policy, batch, losses);
    return losses;
  }

  // Each pair by how likely the policy finds it, against what it finds most likely (WPO).
  void weight(const PolicySums& policy, const Batch& batch, Losses& losses) const {
    const at::Tensor weights_S = at::exp(policy.aligned / policy.labels.clamp_min(1));
    const Pair weights = Pair::of(weights_S);
    const at::Tensor weights_P = weights.chosen * weights.rejected;
    losses.own_P = losses.own_P * weights_P;
    if (losses.shared.defined())
      losses.shared = losses.shared * gather_rows(weights_P, batch, data_).mean();
  }

  // The negative log-likelihood of the chosen completions' tokens.
  at::Tensor likelihood_loss(const PolicySums& policy, const Batch& batch) const {
    const at::Tensor sums_P2 =
        at::stack({Pair::of(policy.logprobs).chosen, Pair::of(policy.labels).chosen}, /*dim=*/1);
    const at::Tensor all_2 = gather_rows(sums_P2, batch, data_).sum(0);
    return all_2.select(0, 0).neg() / all_2.select(0, 1).clamp_min(1);
  }

  at::Tensor transport_loss(const std::string& type, const PolicySums& policy,
                            const at::Tensor& reference_S, const Batch& batch) const {
    const Pair of_policy = Pair::of(policy.logps), of_reference = Pair::of(reference_S);
    const bool paired = type == kAot;
    const at::Tensor better =
        paired ? of_policy.difference() : of_policy.chosen - of_reference.chosen;
    const at::Tensor worse =
        paired ? of_reference.difference() : of_policy.rejected - of_reference.rejected;
    const at::Tensor all_N2 = gather_rows(at::stack({better, worse}, /*dim=*/1), batch, data_);
    return transport_losses(all_N2.select(1, 0), all_N2.select(1, 1), options_).mean();
  }

  MetricSums measure(const PolicySums& policy, const PairTerms& terms) const {
    const auto num_pairs = static_cast<double>(terms.logratios.chosen.size(0));
    const Pair labels = Pair::of(policy.labels), logits = Pair::of(policy.mean_logits);
    const Pair logps = Pair::of(policy.logps.detach());
    const Pair rewards{terms.logratios.chosen.detach() * options_.beta,
                       terms.logratios.rejected.detach() * options_.beta};
    MetricSums measured;
    measured.add("entropy", policy.entropy.sum(), policy.labels.sum());
    measured.add("mean_token_accuracy", Pair::of(policy.correct).chosen.sum(), labels.chosen.sum());
    measured.add("logits/chosen", logits.chosen.sum(), labels.chosen.sum());
    measured.add("logits/rejected", logits.rejected.sum(), labels.rejected.sum());
    measured.add("rewards/chosen", rewards.chosen.sum(), num_pairs);
    measured.add("rewards/rejected", rewards.rejected.sum(), num_pairs);
    measured.add("rewards/accuracies", (rewards.chosen > rewards.rejected).sum(), num_pairs);
    measured.add("rewards/margins", rewards.difference().sum(), num_pairs);
    measured.add("logps/chosen", logps.chosen.sum(), num_pairs);
    measured.add("logps/rejected", logps.rejected.sum(), num_pairs);
    return measured;
  }

  Collectives& data_;
  const PreferenceOptions options_;
  const double tail_alpha_;
  const bool use_weighting_;
  std::vector<WeightedLoss> losses_;
};

}  // namespace

std::unique_ptr<Objective> make_dpo(const v1::JobSpec& spec, Collectives& data) {
  return std::make_unique<Dpo>(spec, data);
}

}  // namespace tessera
