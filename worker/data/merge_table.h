// What two neighbouring tokens merge to: a flat hash table, since BPE does little else than look
// here.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace tessera {

struct Merge {
  static constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();

  uint32_t rank = kNoRank;  // the lower, the sooner; kNoRank: the two do not merge
  int32_t id = 0;           // of the merged token
};

class MergeTable {
 public:
  // Requires that at most `max_merges` are added.
  void reserve(size_t max_merges) {
    const size_t num_slots = std::bit_ceil(max_merges * 3 / 2 + 2);
    slots_.assign(num_slots, {});
    shift_ = 64 - std::countr_zero(num_slots);
  }

  // A pair that is there already gets the new merge.
  void add(int32_t left, int32_t right, Merge merge) {
    Slot& slot = slots_[index_of(key_of(left, right))];
    slot = {key_of(left, right), merge};
  }

  Merge find(int32_t left, int32_t right) const {
    return slots_[index_of(key_of(left, right))].merge;
  }

 private:
  static constexpr uint64_t kEmpty = std::numeric_limits<uint64_t>::max();
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  // Of the key's slot, or of the empty one where it would go.
  size_t index_of(uint64_t key) const {
    constexpr uint64_t kFibonacci = 0x9E3779B97F4A7C15;
    size_t index = ((key ^ key >> 29) * kFibonacci) >> shift_;
    while (slots_[index].key != key && slots_[index].key != kEmpty) {
      index = (index + 1) & (slots_.size() - 1);
    }
    return index;
  }

  std::vector<Slot> slots_;
  int shift_ = 0;
};

}  // namespace tessera
