// GPT-2's byte-level alphabet: tokenizer.json writes a token's bytes as printable characters. Here
// tokens are kept as bytes, so the alphabet matters at load alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "worker/data/split.h"

namespace tessera {

// The character of a byte, and back.
char32_t byte_level_character(uint8_t byte);
std::optional<uint8_t> byte_level_byte(char32_t character);

// The bytes a token stands for; none where a character is not of the alphabet. Requires valid
// UTF-8.
std::optional<std::string> bytes_of_token(std::string_view token);
// The token that stands for these bytes.
std::string token_of_bytes(std::string_view bytes);

// The pre-tokenizer.
class ByteLevel final : public PreTokenizer {
 public:
  explicit ByteLevel(const JsonNode& node);

  void apply(Pieces& pieces, Regex::Matcher& matcher) const override;
  bool to_bytes() const override { return true; }

 private:
  bool add_prefix_space_;
  std::optional<Split> split_;
};

}  // namespace tessera
