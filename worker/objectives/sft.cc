// Supervised fine-tuning. Source: trl/trainer/sft_trainer.py.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include "worker/objectives/objective.h"

namespace tessera {
namespace {

at::Tensor filled(const Batch& batch, double value) {
  return at::full(batch.labels_T.sizes(), value, batch.labels_T.options().dtype(at::kFloat));
}

// The negative log-likelihood of every label.
class Nll : public Objective {
 public:
  at::Tensor loss_sum(const HeadOutput& head, const Batch&) const override {
    return head.logprobs_T.sum().neg();
  }
  HeadRequest head_request(const Batch& batch, double normalizer) const override {
    return {.gradient = {.logprobs_T = filled(batch, -1 / normalizer)}};
  }
};

// The same against a target that gives `epsilon` of its mass to the whole vocabulary in equal
// parts. Source: LabelSmoother in transformers/trainer_pt_utils.py.
class SmoothedNll : public Objective {
 public:
  explicit SmoothedNll(double epsilon) : epsilon_(epsilon) {}
  at::Tensor loss_sum(const HeadOutput& head, const Batch&) const override {
    return (head.logprobs_T * (1 - epsilon_) + head.mean_logprobs_T * epsilon_).sum().neg();
  }
  HeadRequest head_request(const Batch& batch, double normalizer) const override {
    return {.mean_logprobs = true,
            .gradient = {.logprobs_T = filled(batch, (epsilon_ - 1) / normalizer),
                         .mean_logprobs_T = filled(batch, -epsilon_ / normalizer)}};
  }

 private:
  double epsilon_;
};

// Dynamic fine-tuning (arXiv 2508.05629): each label's loss is weighted with its probability, which
// is taken as a constant.
class Dft : public Objective {
 public:
  at::Tensor loss_sum(const HeadOutput& head, const Batch&) const override {
    return (head.logprobs_T * head.logprobs_T.detach().exp()).sum().neg();
  }
  HeadRequest head_request(const Batch& batch, double normalizer) const override {
    return {.gradient = {.logprobs_T = filled(batch, -1 / normalizer), .times_probability = true}};
  }
};

}  // namespace

std::unique_ptr<Objective> make_sft(const v1::JobSpec& spec) {
  if (spec.method().sft().loss_type() == "dft") return std::make_unique<Dft>();
  const double epsilon = spec.training().label_smoothing_factor();
  if (epsilon > 0) return std::make_unique<SmoothedNll>(epsilon);
  return std::make_unique<Nll>();
}

}  // namespace tessera
