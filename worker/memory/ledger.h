// Every byte has an owner: the allocators of LibTorch are wrapped, and each allocation is charged
// to the owner that the allocating thread has in scope.
//
// Counts are exact tensor bytes as requested. Thread safe. LibTorch's allocators are process-wide,
// hence so is the ledger; it is still handed to those who read it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera {

enum class Owner : uint8_t {
  kOther,
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kHead,
  kKvCache,
  kCommunication,  // gathered blocks, reduction buffers
  kData,
  kCheckpoint,  // values that wait to be written
};
inline constexpr int kNumOwners = 10;
std::string_view owner_name(Owner owner);  // "parameters"

class MemoryLedger {
 public:
  struct Snapshot {
    int64_t current_bytes = 0;
    int64_t peak_bytes = 0;
    std::array<int64_t, kNumOwners> current_by_owner{};
    std::array<int64_t, kNumOwners> at_peak_by_owner{};  // split at the moment of peak_bytes
    std::array<int64_t, kNumOwners> peak_by_owner{};     // each owner's own peak
  };

  // Puts itself in front of LibTorch's CPU allocator, once a process; later calls return the same
  // ledger. Call before the first tensor is made.
  static MemoryLedger& install();

  Snapshot snapshot() const;
  // Forgets the peaks: they start again from what is allocated now.
  void reset_peak();
};

// Charges allocations of this thread to `owner` while it lives. Scopes nest.
class OwnerScope {
 public:
  explicit OwnerScope(Owner owner);
  ~OwnerScope();
  OwnerScope(const OwnerScope&) = delete;
  OwnerScope& operator=(const OwnerScope&) = delete;

 private:
  Owner previous_;
};

// Resident set of this process, now and at most, in bytes. Source: /proc/self/status (VmRSS,
// VmHWM).
struct ProcessMemory {
  int64_t rss_bytes = 0;
  int64_t peak_rss_bytes = 0;
};
ProcessMemory process_memory();

}  // namespace tessera
