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
  // What the head shall make for loss_sum(), with the gradient of loss_sum / normalizer where that
  // is known beforehand: the head then saves a matrix product.
  virtual HeadRequest head_request(const Batch& batch, double normalizer) const = 0;
};

// The objective of the spec's method.
std::unique_ptr<Objective> make_objective(const v1::JobSpec& spec);

std::unique_ptr<Objective> make_sft(const v1::JobSpec& spec);

}  // namespace tessera
