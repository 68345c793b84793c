// What a method minimises: a small function of the log-probabilities of labels.
#pragma once

#include <memory>
#include <string_view>

#include "tessera/v1/job.pb.h"
#include "worker/batch.h"
#include "worker/model/head.h"

namespace tessera {

class Objective {
 public:
  virtual ~Objective() = default;
  // The sum whose gradient is taken, float32 scalar, over this rank's microbatch. The trainer
  // divides it by the number of labels of the whole step, over ranks and microbatches.
  virtual at::Tensor loss_sum(const HeadOutput& head, const Batch& batch) const = 0;
  // The gradient of loss_sum / normalizer with respect to logprobs_T, where it does not depend on
  // them: the head then saves a matrix product (fused_head). Else undefined.
  virtual at::Tensor known_gradient(const Batch&, double /*normalizer*/) const { return {}; }
};

// The objective of the spec's method.
std::unique_ptr<Objective> make_objective(const v1::Method& method);

std::unique_ptr<Objective> make_sft(const v1::Sft& config);

}  // namespace tessera
