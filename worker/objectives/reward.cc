// Reward modelling: a document is scored, and the chosen one of a pair should score higher (Bradley
// and Terry). Source: trl/trainer/reward_trainer.py.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/softplus.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker/objectives/objective.h"
#include "worker/objectives/sequences.h"

namespace tessera {
namespace {

// P pairs on this rank.
class Reward : public Objective {
 public:
  Reward(const v1::JobSpec& spec, Collectives& data)
      : Objective(spec, Mean::kMicrobatches),
        data_(data),
        center_(spec.method().reward().center_rewards_coefficient()) {}

  ObjectiveOutput run(const Models& models, const Batch& batch,
                      const StepShare& share) const override {
    // Nothing holds the hidden states but what backward needs.
    const at::Tensor scores_P2 =
        models.policy.score(models.policy.forward(batch, share.forward), batch)
            .to(at::kDouble)
            .view({batch.num_sequences / 2, 2});
    const at::Tensor sum = losses(scores_P2, batch).sum();
    const auto all_pairs = static_cast<double>(std::max<int64_t>(1, batch.num_rows_of_all));
    MetricSums measured = measure(scores_P2.detach(), batch);
    measured.add(kLossMetric, sum, static_cast<double>(scores_P2.size(0)));
    return {sum / (all_pairs * static_cast<double>(share.num_microbatches)),
            measured.in_order(metrics()), models.policy.aux_loss()};
  }

 private:
  // Of each pair.
  at::Tensor losses(const at::Tensor& scores_P2, const Batch& batch) const {
    const at::Tensor chosen_P = scores_P2.select(1, 0), rejected_P = scores_P2.select(1, 1);
    at::Tensor ahead_P = chosen_P - rejected_P;
    if (batch.values_S.defined()) ahead_P = ahead_P - batch.values_S.view({-1, 2}).select(1, 0);
    // -log sigmoid(x); from the threshold on, x alone is nearer than float64 can tell.
    const at::Tensor losses_P = at::softplus(-ahead_P, /*beta=*/1, /*threshold=*/40);
    if (center_ == 0) return losses_P;
    return losses_P + (chosen_P + rejected_P).square() * center_;
  }

  MetricSums measure(const at::Tensor& scores_P2, const Batch& batch) const {
    const c10::AutoGradMode no_grad(false);
    const at::Tensor chosen_P = scores_P2.select(1, 0), rejected_P = scores_P2.select(1, 1);
    const auto num_pairs = static_cast<double>(scores_P2.size(0));
    const at::Tensor of_all = gather_rows(scores_P2, batch, data_);
    MetricSums measured;
    measured.add("min_reward", at::amin(of_all, {0, 1}), 1);
    measured.add("mean_reward", scores_P2.sum(), 2 * num_pairs);
    measured.add("max_reward", at::amax(of_all, {0, 1}), 1);
    measured.add("accuracy", (chosen_P > rejected_P).sum(at::kDouble), num_pairs);
    measured.add("margin", (chosen_P - rejected_P).sum(), num_pairs);
    return measured;
  }

  Collectives& data_;
  const double center_;
};

}  // namespace

std::unique_ptr<Objective> make_reward(const v1::JobSpec& spec, Collectives& data) {
  return std::make_unique<Reward>(spec, data);
}

}  // namespace tessera
