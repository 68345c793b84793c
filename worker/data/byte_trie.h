// A set of byte strings to walk along a text: a flat hash table of the steps from node to node.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera {

class ByteTrie {
 public:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kRoot = 0;

  ByteTrie() { grow(); }

  // A string that is there already gets the new value.
  void add(std::string_view text, int32_t value) {
    int32_t node = kRoot;
    for (const char byte : text) {
      int32_t next = step(node, byte);
      if (next == kNone) {
        next = static_cast<int32_t>(values_.size());
        values_.push_back(kNone);
        if (values_.size() * 2 > slots_.size()) grow();
        slots_[index_of(key_of(node, byte))] = {key_of(node, byte), next};
      }
      node = next;
    }
    values_[node] = value;
  }

  // The node one byte further, or kNone.
  int32_t step(int32_t node, char byte) const { return slots_[index_of(key_of(node, byte))].next; }
  // Of the string that ends at the node, or kNone.
  int32_t value(int32_t node) const { return values_[node]; }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    int32_t next = kNone;
  };

  static uint64_t key_of(int32_t node, char byte) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
  }

  // Of the key's slot, or of the empty one where it would go.
  size_t index_of(uint64_t key) const {
    constexpr uint64_t kFibonacci = 0x9E3779B97F4A7C15;
    size_t index = (key * kFibonacci) >> shift_;
    while (slots_[index].key != key && slots_[index].key != kEmpty) {
      index = (index + 1) & (slots_.size() - 1);
    }
    return index;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : slots_.size() * 2);
    old.swap(slots_);
    shift_ = 64 - std::countr_zero(slots_.size());
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) slots_[index_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::vector<int32_t> values_{kNone};  // a node each
  int shift_ = 0;
};

}  // namespace tessera
