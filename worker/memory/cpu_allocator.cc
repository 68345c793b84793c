#include <malloc.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "worker/errors.h"
#include "worker/memory/allocators.h"

namespace tessera {
namespace {

constexpr size_t kAlignment = 64;

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

constexpr size_t kMaxBytes = size_t{1} << 62;

// Stands in front of each block, with what a free must know.
struct alignas(kAlignment) Header {
  void* block;  // where malloc's begins
  int64_t bytes;
  MemoryLedger* ledger;
  Attribution who;
};
static_assert(sizeof(Header) == kAlignment);

void release(void* data) {
  if (data == nullptr) return;
  const Header* header = static_cast<Header*>(data) - 1;
  header->ledger->release(header->who, header->bytes);
  std::free(header->block);
}

struct Free {
  void operator()(void* block) const { std::free(block); }
};

void ask_for_huge_pages(uintptr_t begin, size_t bytes) {
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
  // Where the kernel has none, the block stays as it is.
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(MemoryLedger& ledger) : ledger_(ledger) {}

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    // Not aligned_alloc: glibc cannot give a hole that an aligned block left to an equal request,
    // and the heap grows. malloc aligns to 16, so the header begins at most 48 bytes into the
    // block.
    constexpr size_t kOverhead = sizeof(Header) + kAlignment - alignof(std::max_align_t);
    const Attribution who = attribution();
    const auto size = static_cast<int64_t>(bytes);
    std::unique_ptr<void, Free> block(bytes > kMaxBytes ? nullptr : std::malloc(bytes + kOverhead));
    if (block == nullptr) throw MemoryError(describe(ledger_.refuse(who, size)));
    ledger_.charge(who, size);
    const auto begin = reinterpret_cast<uintptr_t>(block.get());
    ask_for_huge_pages(begin, bytes + kOverhead);
    auto* header = reinterpret_cast<Header*>((begin + kAlignment - 1) / kAlignment * kAlignment);
    *header = {block.release(), size, &ledger_, who};
    void* data = header + 1;
    return {data, data, &release, cpu};
  }

  // Of memory that is another's.
  c10::DataPtr charge(void* data, int64_t bytes) {
    auto charge = std::make_unique<Charge>(ledger_, attribution(), bytes);
    ledger_.charge(charge->who, bytes);
    return {data, charge.release(), &Charge::release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

 private:
  struct Charge {
    MemoryLedger& ledger;
    Attribution who;
    int64_t bytes;

    static void release(void* context) {
      const std::unique_ptr<Charge> charge(static_cast<Charge*>(context));
      charge->ledger.release(charge->who, charge->bytes);
    }
  };

  Attribution attribution() const {
    Attribution who = current_attribution();
    if (who.space == Space::kDevice) who.space = ledger_.cpu_space();
    return who;
  }

  MemoryLedger& ledger_;
};

}  // namespace

std::unique_ptr<c10::Allocator> make_cpu_allocator(MemoryLedger& ledger) {
  ::mallopt(M_MMAP_THRESHOLD, kMmapThreshold);
  ::mallopt(M_TRIM_THRESHOLD, kNeverTrim);
  return std::make_unique<CpuAllocator>(ledger);
}

c10::DataPtr charge_mapped(void* data, int64_t bytes) {
  auto* allocator = dynamic_cast<CpuAllocator*>(c10::GetAllocator(c10::DeviceType::CPU));
  if (allocator == nullptr) return {data, c10::Device(c10::DeviceType::CPU)};
  return allocator->charge(data, bytes);
}

}  // namespace tessera
