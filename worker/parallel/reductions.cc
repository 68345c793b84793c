#include "worker/parallel/reductions.h"

#include <utility>

namespace tessera {

void ReductionQueue::push(std::unique_ptr<Work> work, at::Tensor keep, std::function<void()> done) {
  finish();
  work_ = std::move(work);
  kept_ = std::move(keep);
  done_ = std::move(done);
}

void ReductionQueue::finish() {
  if (!work_) return;
  work_->wait();
  work_.reset();
  kept_.reset();
  std::exchange(done_, nullptr)();
}

}  // namespace tessera
