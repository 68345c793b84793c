// Supervised fine-tuning: the negative log-likelihood of every label. Source:
// trl/trainer/sft_trainer.py.
#include <ATen/ops/sum.h>

#include "worker/objectives/objective.h"

namespace tessera {
namespace {

class Sft : public Objective {
 public:
  at::Tensor loss_sum(const HeadOutput& head, const Batch&) const override {
    return head.logprobs_T.sum().neg();
  }
};

}  // namespace

std::unique_ptr<Objective> make_sft(const v1::Sft&) { return std::make_unique<Sft>(); }

}  // namespace tessera
