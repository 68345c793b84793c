// Every byte has an owner: the allocators of LibTorch are wrapped, and each allocation is charged
// to what the allocating thread has in scope (worker/memory/attribution.h).
//
// A ledger counts two spaces, device and host. Counts are exact tensor bytes as requested; of a
// GPU, or a tensor that stands for one's, the device's are in wholes of its allocator. Thread safe.
// LibTorch's allocators are process-wide, hence so are the ledgers; they are still handed to
// those who read them.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "worker/memory/attribution.h"
#include "worker/memory/counts.h"
#include "worker/memory/recording.h"

namespace tessera {

// An allocation that could not be, and what the ledger held at that moment.
struct MemoryRefusal {
  Attribution who;
  int64_t bytes = 0;
  std::array<MemoryTotals, kNumSpaces> totals;
  std::vector<MemoryCell> cells;  // of who.space; they sum to its current bytes
  int64_t device_limit = 0;       // as MemoryLedger::device_limit()
};

// "cannot allocate 32.0 MiB for activations of model.layers.3 in backward: 490.0 MiB of 512.0 MiB
// are taken: optimizer 196.2 MiB, ...".
std::string describe(const MemoryRefusal& refusal);

// What a space held when it held most.
struct SpacePeak {
  int64_t bytes = 0;
  std::vector<MemoryCell> cells;  // by owner, block and phase; largest first; they sum to `bytes`
  Attribution reached;            // the allocation that made the peak what it is
};

class MemoryLedger {
 public:
  // Puts itself in front of LibTorch's CPU allocator, once a process; later calls return the same
  // ledger. Call before the first tensor is made.
  static MemoryLedger& install();
  // Likewise for meta tensors: a ledger of its own, that counts what they would take. A meta
  // storage that is resized in place (Tensor::resize_) keeps the bytes it was first allocated with:
  // LibTorch asks no allocator then.
  static MemoryLedger& install_meta();

  MemoryTotals snapshot(Space space = Space::kDevice) const;
  SpacePeak peak(Space space = Space::kDevice) const;
  // Forgets the peaks of both spaces: they start again from what is allocated now.
  void reset_peak();

  // An allocation that would bring the device space above `bytes` is refused from now on. 0: none
  // is.
  void set_device_limit(int64_t bytes);
  int64_t device_limit() const;
  // The last allocation that was refused, by this ledger or by the device. Nothing before the
  // first.
  std::optional<MemoryRefusal> last_refusal() const;

  // Keeps each allocation and release from now on, in both spaces: at most kMaxRecordedEvents.
  void start_recording();
  // What was kept since; an empty recording where none was started.
  MemoryRecording stop_recording();

  // For allocators. A release names what its allocation was charged to, whoever frees it.
  //
  // Throws MemoryError at the limit; nothing is charged then.
  void charge(const Attribution& who, int64_t bytes);
  void release(const Attribution& who, int64_t bytes);
  // Charges what the device's own allocator has given already.
  void charge_given(const Attribution& who, int64_t bytes);
  // The space that CPU tensors count for outside of any HostSpaceScope. Host: in a CUDA job.
  void count_cpu_as(Space space) { cpu_space_ = space; }
  Space cpu_space() const { return cpu_space_; }
  // Keeps a refusal as last_refusal().
  MemoryRefusal refuse(const Attribution& who, int64_t bytes);

 private:
  Space cpu_space_ = Space::kDevice;  // set before the threads that allocate

  MemoryCounts& counts(Space space) const { return counts_[static_cast<size_t>(space)]; }
  void add(const Attribution& who, int64_t bytes);           // requires mutex_ held
  void keep_refusal(const Attribution& who, int64_t bytes);  // requires mutex_ held

  // A mutex, not atomics: with it the split at the peak is exact, and uncontended it costs some 20
  // ns. It guards all below.
  mutable std::mutex mutex_;
  mutable std::array<MemoryCounts, kNumSpaces> counts_;
  int64_t device_limit_ = 0;
  std::optional<MemoryRefusal> last_refusal_;
  std::optional<MemoryRecording> recording_;
};

// Resident set of this process, now and at most, in bytes. Source: /proc/self/status (VmRSS,
// VmHWM).
struct ProcessMemory {
  int64_t rss_bytes = 0;
  int64_t peak_rss_bytes = 0;
};
ProcessMemory process_memory();

}  // namespace tessera
