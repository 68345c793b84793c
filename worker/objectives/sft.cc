// Supervised fine-tuning: the negative log-likelihood of every label. Source:
// trl/trainer/sft_trainer.py.
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include "worker/objectives/objective.h"

namespace tessera {
namespace {

class Sft : public Objective {
 public:
  at::Tensor loss_sum(const HeadOutput& head, const Batch&) const override {
    return head.logprobs_T.sum().neg();
  }
  at::Tensor known_gradient(const Batch& batch, double normalizer) const override {
    return at::full(batch.labels_T.sizes(), -1 / normalizer,
                    batch.labels_T.options().dtype(at::kFloat));
  }
};

}  // namespace

std::unique_ptr<Objective> make_sft(const v1::Sft&) { return std::make_unique<Sft>(); }

}  // namespace tessera
