// Every byte has an owner: the allocators of LibTorch are wrapped, and each allocation is charged
// to what the allocating thread has in scope (worker/memory/attribution.h).
//
// A ledger counts two spaces, device and host. Counts are exact tensor bytes as requested. Thread
// safe. LibTorch's allocators are process-wide, hence so are the ledgers; they are still handed to
// those who read them.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "worker/memory/attribution.h"
#include "worker/memory/counts.h"

namespace tessera {

class MemoryLedger {
 public:
  using Snapshot = MemoryTotals;

  // Puts itself in front of LibTorch's CPU allocator, once a process; later calls return the same
  // ledger. Call before the first tensor is made.
  static MemoryLedger& install();
  // Likewise for meta tensors: a ledger of its own, that counts what they would take. A meta
  // storage that is resized in place (Tensor::resize_) keeps the bytes it was first allocated with:
  // LibTorch asks no allocator then.
  static MemoryLedger& install_meta();

  Snapshot snapshot(Space space = Space::kDevice) const;
  // Forgets the peaks of both spaces: they start again from what is allocated now.
  void reset_peak();

  // For allocators. A release names what its allocation was charged to, whoever frees it.
  void charge(const Attribution& who, int64_t bytes);
  void release(const Attribution& who, int64_t bytes);

 private:
  MemoryCounts& counts(Space space) const { return counts_[static_cast<size_t>(space)]; }

  // A mutex, not atomics: with it the split at the peak is exact, and uncontended it costs some 20
  // ns.
  mutable std::mutex mutex_;
  mutable std::array<MemoryCounts, kNumSpaces> counts_;  // guarded by mutex_
};

// Resident set of this process, now and at most, in bytes. Source: /proc/self/status (VmRSS,
// VmHWM).
struct ProcessMemory {
  int64_t rss_bytes = 0;
  int64_t peak_rss_bytes = 0;
};
ProcessMemory process_memory();

}  // namespace tessera
