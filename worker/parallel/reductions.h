// What the units of one model share about the gradients of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "worker/parallel/collectives.h"

namespace tessera {

// At most one reduce-scatter is under way at a time, so that gradients of two units at most are
// whole. Not thread safe.
class ReductionQueue {
 public:
  // Waits for the one before. `keep` stays alive until the work is done; then `done` is called.
  void push(std::unique_ptr<Work> work, at::Tensor keep, std::function<void()> done);
  void finish();

 private:
  std::unique_ptr<Work> work_;
  at::Tensor kept_;
  std::function<void()> done_;
};

}  // namespace tessera
