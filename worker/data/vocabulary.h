// The tokens of a model and their ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "worker/data/json.h"

namespace tessera {

// Limits on what a tokenizer's files may hold.
inline constexpr int64_t kMaxTokens = int64_t{1} << 22;
inline constexpr size_t kMaxTokenBytes = 64 << 10;

class Vocabulary {
 public:
  Vocabulary() = default;
  // {"token": id, ...}. Throws UserError: empty, ids out of range or twice, tokens too long.
  explicit Vocabulary(const JsonNode& object);

  // A token that is there already moves to the new id. Requires 0 <= id < kMaxTokens.
  void add(std::string_view token, int32_t id);

  std::optional<int32_t> id_of(std::string_view token) const;
  // As files write them; an id without one is empty.
  const std::vector<std::string>& tokens() const { return tokens_; }
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
};

}  // namespace tessera
