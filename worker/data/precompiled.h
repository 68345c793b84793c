// SentencePiece's normalization rules in the form its models keep them: a trie of UTF-8 prefixes
// (Darts' double array) and the texts they become.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/normalizer.h"

namespace tessera {

class Precompiled final : public Normalizer {
 public:
  // tokenizer.json writes the map as base64.
  explicit Precompiled(const JsonNode& node);
  // The bytes of the map. Throws std::invalid_argument when they are none.
  explicit Precompiled(std::string_view charsmap);

  void apply(AlignedText& text) const override;

 private:
  // What the shortest prefix of `text` that has a rule becomes; none has: nothing.
  std::optional<std::string_view> find(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;  // each ends in a zero byte
  std::array<bool, 128> ascii_has_rule_{};
};

}  // namespace tessera
