// Supervised fine-tuning. Source: trl/trainer/sft_trainer.py.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "worker/objectives/objective.h"

namespace tessera {
namespace {

at::Tensor filled(const Batch& batch, double value) {
  return at::full(batch.labels_T.sizes(), value, batch.labels_T.options().dtype(at::kFloat));
}

// The sum over labels of a function of each one's log-probabilities, whose gradient is known before
// they are: the head makes the gradients of its inputs in forward.
class Sft : public Objective {
 public:
  explicit Sft(const v1::JobSpec& spec) : Objective(spec, Mean::kLabels) {}

  ObjectiveOutput run(const Models& models, const Batch& batch,
                      const StepShare& share) const override {
    const auto normalizer = static_cast<double>(std::max<int64_t>(1, share.num_labels));
    // Nothing holds the hidden states but what backward needs.
    const HeadOutput head = models.policy.head(models.policy.forward(batch, share.forward), batch,
                                               head_request(batch, normalizer));
    const at::Tensor sum = loss_sum(head);
    const auto num_labels = static_cast<double>(batch.num_labels);
    MetricSums measured;
    measured.add(kLossMetric, sum, num_labels);
    measured.add("entropy", head.entropy_T.sum(at::kDouble), num_labels);
    measured.add("mean_token_accuracy", head.correct_T.sum(at::kDouble), num_labels);
    return {sum / normalizer, measured.in_order(metrics()), models.policy.aux_loss()};
  }

 private:
  // float32 scalar.
  virtual at::Tensor loss_sum(const HeadOutput& head) const = 0;
  // What the head shall make for it, with the gradient of loss_sum / normalizer.
  virtual HeadRequest head_request(const Batch& batch, double normalizer) const = 0;
};

// The negative log-likelihood of every label.
class Nll : public Sft {
 public:
  using Sft::Sft;

 private:
  at::Tensor loss_sum(const HeadOutput& head) const override { return head.logprobs_T.sum().neg(); }
  HeadRequest head_request(const Batch& batch, double normalizer) const override {
    return {.gradient = {.logprobs_T = filled(batch, -1 / normalizer)}};
  }
};

// The same against a target that gives `epsilon` of its mass to the whole vocabulary in equal
// parts. Source: LabelSmoother in transformers/trainer_pt_utils.py.
class SmoothedNll : public Sft {
 public:
  SmoothedNll(const v1::JobSpec& spec, double epsilon) : Sft(spec), epsilon_(epsilon) {}

 private:
  at::Tensor loss_sum(const HeadOutput& head) const override {
    return (head.logprobs_T * (1 - epsilon_) + head.mean_logprobs_T * epsilon_).sum().neg();
  }
  HeadRequest head_request(const Batch& batch, double normalizer) const override {
    return {.mean_logprobs = true,
            .gradient = {.logprobs_T = filled(batch, (epsilon_ - 1) / normalizer),
                         .mean_logprobs_T = filled(batch, -epsilon_ / normalizer)}};
  }

  double epsilon_;
};

// Dynamic fine-tuning (arXiv 2508.05629): each label's loss is weighted with its probability, which
// is taken as a constant.
class Dft : public Sft {
 public:
  using Sft::Sft;

 private:
  at::Tensor loss_sum(const HeadOutput& head) const override {
    return (head.logprobs_T * head.logprobs_T.detach().exp()).sum().neg();
  }
  HeadRequest head_request(const Batch& batch, double normalizer) const override {
    return {.gradient = {.logprobs_T = filled(batch, -1 / normalizer), .times_probability = true}};
  }
};

}  // namespace

std::unique_ptr<Objective> make_sft(const v1::JobSpec& spec) {
  if (spec.method().sft().loss_type() == "dft") return std::make_unique<Dft>(spec);
  const double epsilon = spec.training().label_smoothing_factor();
  if (epsilon > 0) return std::make_unique<SmoothedNll>(spec, epsilon);
  return std::make_unique<Nll>(spec);
}

}  // namespace tessera
