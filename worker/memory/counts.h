// Bytes of one space by owner, block and phase: now, and as they were at the peak.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/memory/attribution.h"

namespace tessera {

using BytesByOwner = std::array<int64_t, kNumOwners>;
using BytesByPhase = std::array<int64_t, kNumPhases>;

struct MemoryTotals {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
  BytesByOwner current_by_owner{};
  BytesByOwner at_peak_by_owner{};  // split at the moment of peak_bytes
  BytesByOwner peak_by_owner{};     // each owner's own peak
  // The most that was allocated in all when something was allocated in a phase; 0: nothing was.
  BytesByPhase peak_by_phase{};
};

// Bytes that were allocated for an owner, in a block, during a phase.
struct MemoryCell {
  Owner owner = Owner::kOther;
  Phase phase = Phase::kLoad;
  BlockId block = 0;
  int64_t bytes = 0;

  bool operator==(const MemoryCell&) const = default;
};

// Not thread safe.
//
// The split at the peak is copied late, at the first release after it, and only where it changed: a
// step that rises through thousands of small peaks pays for each once.
class MemoryCounts {
 public:
  void add(const Attribution& who, int64_t bytes);
  void remove(const Attribution& who, int64_t bytes);

  const MemoryTotals& totals();
  int64_t current_bytes() const { return totals_.current_bytes; }
  // All cells that are not zero, the largest first. Of the peak they sum to peak_bytes, now to
  // current_bytes.
  std::vector<MemoryCell> cells_at_peak();
  std::vector<MemoryCell> cells_now() const;
  // What was allocated for whom when the peak was reached.
  const Attribution& reached_peak() const { return reached_peak_; }
  // Peaks start again from what is allocated now.
  void reset_peak();

 private:
  struct Cell {
    int64_t now = 0;
    int64_t at_peak = 0;
    bool changed = false;  // since at_peak was copied
  };
  Cell& cell(const Attribution& who);
  void copy_peak();
  std::vector<MemoryCell> cells(int64_t Cell::* bytes) const;

  MemoryTotals totals_;
  std::vector<Cell> cells_;  // [blocks seen][kNumOwners][kNumPhases]
  std::vector<size_t> changed_;
  bool at_peak_ = false;  // nothing was released since the peak grew
  Attribution reached_peak_;
};

}  // namespace tessera
