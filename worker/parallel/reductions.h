// What the units of one model share about the gradients of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>

#include "worker/parallel/collectives.h"

namespace tessera {

class ShardedUnit;

// At most one reduce-scatter is under way at a time, so that gradients of two units at most are
// whole. Not thread safe.
class ReductionQueue {
 public:
  ReductionQueue() = default;
  ~ReductionQueue();
  ReductionQueue(const ReductionQueue&) = delete;
  ReductionQueue& operator=(const ReductionQueue&) = delete;

  // Waits for the one before. `keep` stays alive until the work is done; then `done` is called.
  // Throws NetworkError when the one before does: this one is then waited for all the same, when
  // the queue goes.
  void push(std::unique_ptr<Work> work, at::Tensor keep, std::function<void()> done);
  void finish();

  // Call before a backward: whether it is the last of its step. Until the first call each is.
  void begin_backward(bool last_of_step) { last_of_step_ = last_of_step; }
  bool last_of_step() const { return last_of_step_; }

  // Called once a step with each unit whose gradient is that of the whole step, summed over ranks,
  // as soon as it is; in the same order on every rank.
  using OnGradient = std::function<void(ShardedUnit&)>;
  void set_on_gradient(OnGradient on_gradient) { on_gradient_ = std::move(on_gradient); }
  void gradient_is_there(ShardedUnit& unit) const {
    if (on_gradient_) on_gradient_(unit);
  }

 private:
  struct Reduction {
    at::Tensor kept;
    std::function<void()> done;
    std::unique_ptr<Work> work;  // goes before what it works on
  };
  static void finish(Reduction reduction);

  Reduction under_way_;
  bool last_of_step_ = true;
  OnGradient on_gradient_;
};

}  // namespace tessera
