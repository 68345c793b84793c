// The allocator puts a header in front of each block. It holds what a free must know (size, owner
// and where malloc's block begins), so that a block is charged back right whatever thread and scope
// frees it.
#include "worker/memory/ledger.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>

#include "worker/errors.h"

namespace tessera {
namespace {

constexpr size_t kAlignment = 64;
// LibTorch's own allocators register with priority 0.
constexpr uint8_t kAllocatorPriority = 100;

// glibc by default returns blocks of 128 KiB and more to the kernel at each free, and faults their
// pages in again at the next allocation: 160,000 faults a training step. Below kMmapThreshold
// (glibc's maximum) blocks are kept for reuse, and the heap is never trimmed: what a step needs the
// next one will. Larger blocks still come and go with the kernel, so a big temporary never stays
// resident.
constexpr int kMmapThreshold = 32 << 20;
constexpr int kNeverTrim = -1;

// Blocks that hold whole huge pages ask for them: matrix products touch too many small ones for
// the processor's table of pages.
constexpr size_t kHugePage = 2 << 20;

struct alignas(kAlignment) Header {
  void* block;
  size_t bytes;
  Owner owner;
};
static_assert(sizeof(Header) == kAlignment);

// A mutex, not atomics: with it the split at the peak is exact, and uncontended it costs some 20
// ns.
struct Counts {
  std::mutex mutex;
  MemoryLedger::Snapshot now;  // guarded by mutex
};

Counts& counts() {
  static Counts* const counts =
      new Counts;  // leaked: tensors in statics are freed after exit begins
  return *counts;
}

thread_local Owner current_owner = Owner::kOther;

void charge(Owner owner, int64_t bytes) {
  const auto index = static_cast<size_t>(owner);
  Counts& all = counts();
  std::lock_guard lock(all.mutex);
  MemoryLedger::Snapshot& now = all.now;
  now.current_bytes += bytes;
  now.current_by_owner[index] += bytes;
  if (now.current_by_owner[index] > now.peak_by_owner[index]) {
    now.peak_by_owner[index] = now.current_by_owner[index];
  }
  if (now.current_bytes > now.peak_bytes) {
    now.peak_bytes = now.current_bytes;
    now.at_peak_by_owner = now.current_by_owner;
  }
}

void release(void* data) {
  if (data == nullptr) return;
  const Header* header = static_cast<Header*>(data) - 1;
  charge(header->owner, -static_cast<int64_t>(header->bytes));
  std::free(header->block);
}

[[noreturn]] void throw_out_of_memory(size_t bytes) {
  int64_t held;
  {
    std::lock_guard lock(counts().mutex);
    held = counts().now.current_bytes;
  }
  throw MemoryError("cannot allocate " + std::to_string(bytes) + " bytes for " +
                    std::string(owner_name(current_owner)) + "; " + std::to_string(held) +
                    " bytes of tensors are allocated");
}

void ask_for_huge_pages(uintptr_t begin, size_t bytes) {
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
  // Where the kernel has none, the block stays as it is.
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

class LedgerAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    // Not aligned_alloc: glibc cannot give a hole that an aligned block left to an equal request,
    // and the heap grows. malloc aligns to 16, so the header begins at most 48 bytes into the
    // block.
    constexpr size_t kOverhead = sizeof(Header) + kAlignment - alignof(std::max_align_t);
    if (bytes > std::numeric_limits<size_t>::max() - kOverhead) throw_out_of_memory(bytes);
    void* block = std::malloc(bytes + kOverhead);
    if (block == nullptr) throw_out_of_memory(bytes);
    const auto begin = reinterpret_cast<uintptr_t>(block);
    ask_for_huge_pages(begin, bytes + kOverhead);
    auto* header = reinterpret_cast<Header*>((begin + kAlignment - 1) / kAlignment * kAlignment);
    *header = {block, bytes, current_owner};
    charge(header->owner, static_cast<int64_t>(bytes));
    void* data = header + 1;
    return {data, data, &release, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }
};

}  // namespace

std::string_view owner_name(Owner owner) {
  static constexpr std::array<std::string_view, kNumOwners> kNames = {
      "other", "parameters", "gradients",     "optimizer", "activations",
      "head",  "kv_cache",   "communication", "data",      "checkpoint"};
  return kNames[static_cast<size_t>(owner)];
}

MemoryLedger& MemoryLedger::install() {
  static MemoryLedger* const ledger = [] {
    ::mallopt(M_MMAP_THRESHOLD, kMmapThreshold);
    ::mallopt(M_TRIM_THRESHOLD, kNeverTrim);
    // Never destroyed: LibTorch keeps the pointer, and tensors may outlive main.
    c10::SetCPUAllocator(new LedgerAllocator, kAllocatorPriority);
    return new MemoryLedger;
  }();
  return *ledger;
}

MemoryLedger::Snapshot MemoryLedger::snapshot() const {
  std::lock_guard lock(counts().mutex);
  return counts().now;
}

void MemoryLedger::reset_peak() {
  std::lock_guard lock(counts().mutex);
  Snapshot& now = counts().now;
  now.peak_bytes = now.current_bytes;
  now.at_peak_by_owner = now.current_by_owner;
  now.peak_by_owner = now.current_by_owner;
}

OwnerScope::OwnerScope(Owner owner) : previous_(current_owner) { current_owner = owner; }

OwnerScope::~OwnerScope() { current_owner = previous_; }

}  // namespace tessera
