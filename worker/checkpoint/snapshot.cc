#include "worker/checkpoint/snapshot.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

constexpr int64_t kPartElements = 4 << 20;

}  // namespace

Snapshot::Snapshot(const std::vector<FlatShard>& shards) {
  for (size_t i = 0; i < shards.size(); ++i) {
    const at::Tensor values = shards[i].data.detach();
    for (int64_t begin = 0; begin < values.numel(); begin += kPartElements) {
      const int64_t numel = std::min(kPartElements, values.numel() - begin);
      parts_.push_back({i, begin, values.narrow(0, begin, numel)});
    }
  }
}

void Snapshot::read(const Sink& sink) {
  std::unique_lock lock(mutex_);
  for (; next_ < parts_.size(); ++next_) {
    changed_.wait(lock, [&] { return !detaching_; });
    Part& part = parts_[next_];
    reading_ = true;
    lock.unlock();
    try {
      sink(part.shard, part.begin, part.values);
    } catch (...) {
      lock.lock();
      reading_ = false;
      changed_.notify_all();
      throw;
    }
    lock.lock();
    part.values.reset();
    reading_ = false;
    changed_.notify_all();
  }
}

int64_t Snapshot::detach() {
  std::unique_lock lock(mutex_);
  if (detached_) return 0;
  detaching_ = true;  // else the reader might take part after part before this thread is woken
  const auto ended = c10::make_scope_exit([this] {
    detaching_ = false;
    changed_.notify_all();
  });
  changed_.wait(lock, [&] { return !reading_; });
  const OwnerScope scope(Owner::kCheckpoint);
  const PhaseScope phase(Phase::kCheckpoint);
  const c10::AutoGradMode no_grad(false);
  int64_t bytes = 0;
  for (Part& part : parts_) {
    if (!part.values.defined()) continue;
    at::Tensor copy = at::empty(part.values.sizes(),
                                part.values.options().device(host_device(part.values.device())));
    copy.copy_(part.values);
    part.values = std::move(copy);
    bytes += static_cast<int64_t>(part.values.nbytes());
  }
  detached_ = true;
  return bytes;
}

}  // namespace tessera
