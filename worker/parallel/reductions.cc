#include "worker/parallel/reductions.h"

#include <utility>

namespace tessera {

// Its work may write to what is kept until it is waited for; whoever destroys the queue with work
// under way has an error in hand, and a second one out of here would abort the process.
ReductionQueue::~ReductionQueue() {
  if (!under_way_.work) return;
  try {
    under_way_.work->wait();
  } catch (const NetworkError&) {
  }
}

void ReductionQueue::push(std::unique_ptr<Work> work, at::Tensor keep, std::function<void()> done) {
  finish(std::exchange(under_way_, {std::move(keep), std::move(done), std::move(work)}));
}

void ReductionQueue::finish() { finish(std::exchange(under_way_, {})); }

void ReductionQueue::finish(Reduction reduction) {
  if (!reduction.work) return;
  reduction.work->wait();
  reduction.work.reset();
  reduction.kept.reset();
  reduction.done();
}

}  // namespace tessera
