#include "worker/memory/ledger.h"

#include <c10/core/CPUAllocator.h>

#include "worker/memory/allocators.h"

namespace tessera {
namespace {

// LibTorch's own allocators register with priority 0.
constexpr uint8_t kAllocatorPriority = 100;

}  // namespace

MemoryLedger& MemoryLedger::install() {
  // Never destroyed, like the next: LibTorch keeps the allocator, and tensors may outlive main.
  static MemoryLedger* const ledger = [] {
    auto* made = new MemoryLedger;
    c10::SetCPUAllocator(make_cpu_allocator(*made).release(), kAllocatorPriority);
    return made;
  }();
  return *ledger;
}

MemoryLedger& MemoryLedger::install_meta() {
  static MemoryLedger* const ledger = [] {
    auto* made = new MemoryLedger;
    c10::SetAllocator(c10::kMeta, make_meta_allocator(*made).release(), kAllocatorPriority);
    return made;
  }();
  return *ledger;
}

MemoryLedger::Snapshot MemoryLedger::snapshot(Space space) const {
  std::lock_guard lock(mutex_);
  return counts(space).totals();
}

void MemoryLedger::reset_peak() {
  std::lock_guard lock(mutex_);
  for (MemoryCounts& space : counts_) space.reset_peak();
}

void MemoryLedger::charge(const Attribution& who, int64_t bytes) {
  std::lock_guard lock(mutex_);
  counts(who.space).add(who, bytes);
}

void MemoryLedger::release(const Attribution& who, int64_t bytes) {
  std::lock_guard lock(mutex_);
  counts(who.space).remove(who, bytes);
}

}  // namespace tessera
