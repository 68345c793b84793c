// Tokens of words seen before. Of fixed size: a word takes the place of another that falls on its
// slot.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace tessera {

class WordCache {
 public:
  WordCache() : slots_(kNumSlots) {}

  // Null where the word is not there; valid until the next insert.
  struct Hit {
    const int32_t* ids;
    int count;
  };
  Hit find(std::string_view word) const {
    if (word.size() > kMaxWordBytes) return {nullptr, 0};
    const Slot& slot = slots_[index_of(word)];
    if (slot.size != word.size() || std::memcmp(slot.word.data(), word.data(), word.size()) != 0) {
      return {nullptr, 0};
    }
    return {slot.ids.data(), slot.count};
  }

  // Words that are too long, or are too many tokens, are left out.
  void insert(std::string_view word, std::span<const int32_t> ids) {
    if (word.size() > kMaxWordBytes || ids.size() > kMaxIds) return;
    Slot& slot = slots_[index_of(word)];
    slot.size = static_cast<uint8_t>(word.size());
    slot.count = static_cast<uint8_t>(ids.size());
    std::memcpy(slot.word.data(), word.data(), word.size());
    std::copy(ids.begin(), ids.end(), slot.ids.begin());
  }

 private:
  static constexpr int kSlotBits = 15;
  static constexpr size_t kNumSlots = size_t{1} << kSlotBits;
  static constexpr size_t kMaxWordBytes = 30;
  static constexpr size_t kMaxIds = 8;

  struct alignas(64) Slot {
    std::array<char, kMaxWordBytes> word;
    uint8_t size = 0;  // 0: free
    uint8_t count = 0;
    std::array<int32_t, kMaxIds> ids;
  };
  static_assert(sizeof(Slot) == 64);

  static size_t index_of(std::string_view word) {
    constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;
    uint64_t hash = word.size();
    size_t i = 0;
    for (; i + 8 <= word.size(); i += 8) {
      uint64_t chunk;
      std::memcpy(&chunk, word.data() + i, 8);
      hash = (hash ^ chunk) * kMultiplier;
      hash ^= hash >> 32;
    }
    uint64_t rest = 0;
    for (size_t shift = 0; i < word.size(); ++i, shift += 8) {
      rest |= static_cast<uint64_t>(static_cast<uint8_t>(word[i])) << shift;
    }
    hash = (hash ^ rest) * kMultiplier;
    return (hash ^ hash >> 32) * kMultiplier >> (64 - kSlotBits);
  }

  std::vector<Slot> slots_;
};

}  // namespace tessera
