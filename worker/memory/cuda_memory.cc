// The CUDA caching allocator tells the ledger of each block that it gives and takes back.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "worker/memory/device_memory.h"

namespace tessera {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using caching::TraceEntry;

// Blocks of one device. Called in the thread that allocates, under the allocator's lock: no call
// into LibTorch may be made.
class DeviceBlocks {
 public:
  DeviceBlocks(MemoryLedger& ledger, c10::DeviceIndex device) : ledger_(ledger), device_(device) {}

  void operator()(const TraceEntry& entry) {
    if (entry.device_ != device_) return;
    if (entry.action_ == TraceEntry::ALLOC) given(entry);
    if (entry.action_ == TraceEntry::FREE_REQUESTED) taken_back(entry);
  }

 private:
  struct Block {
    Attribution who;
    int64_t bytes;
  };

  void given(const TraceEntry& entry) {
    const Block block{current_attribution(), static_cast<int64_t>(entry.size_)};
    ledger_.charge_given(block.who, block.bytes);
    std::lock_guard lock(mutex_);
    blocks_[entry.addr_] = block;
  }

  void taken_back(const TraceEntry& entry) {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(entry.addr_);
    if (found == blocks_.end()) return;  // older than this
    ledger_.release(found->second.who, found->second.bytes);
    blocks_.erase(found);
  }

  MemoryLedger& ledger_;
  const c10::DeviceIndex device_;
  std::mutex mutex_;
  std::unordered_map<size_t, Block> blocks_;  // by address; guarded by mutex_
};

}  // namespace

void use_cuda_device(MemoryLedger& ledger, c10::Device device, int64_t limit_bytes) {
  caching::get()->init(c10::cuda::device_count());
  ledger.count_cpu_as(Space::kHost);
  const auto blocks = std::make_shared<DeviceBlocks>(ledger, device.index());
  caching::attachAllocatorTraceTracker([blocks](const TraceEntry& entry) { (*blocks)(entry); });
  caching::attachOutOfMemoryObserver(
      [&ledger](int64_t, size_t wanted, size_t device_total, size_t) {
        // The total is that of the fraction, where one is set.
        ledger.set_device_limit(static_cast<int64_t>(device_total));
        ledger.refuse(current_attribution(), static_cast<int64_t>(wanted));
      });
  size_t free_bytes = 0, total_bytes = 0;
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  const auto total = static_cast<int64_t>(total_bytes);
  ledger.set_device_limit(limit_bytes > 0 ? std::min(limit_bytes, total) : total);
  if (limit_bytes > 0 && limit_bytes < total) {
    caching::setMemoryFraction(static_cast<double>(limit_bytes) / static_cast<double>(total),
                               device.index());
  }
}

v1::DeviceAllocator cuda_allocator(c10::Device device) {
  const auto stats = caching::getDeviceStats(device.index());
  const auto now = [](const auto& of_all_pools) { return of_all_pools[0].current; };
  v1::DeviceAllocator out;
  out.set_allocated_bytes(now(stats.allocated_bytes));
  out.set_reserved_bytes(now(stats.reserved_bytes));
  out.set_fragmentation(static_cast<double>(now(stats.inactive_split_bytes)) /
                        static_cast<double>(std::max<int64_t>(1, now(stats.reserved_bytes))));
  out.set_num_retries(stats.num_alloc_retries);
  return out;
}

}  // namespace tessera
