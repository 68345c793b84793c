// GPT-2's byte-level alphabet: tokenizer.json writes a token's bytes as printable characters. A BPE
// model over bytes keeps the bytes, so there the alphabet matters at load alone.
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

// Each byte of the text becomes its character.
void map_to_byte_level(AlignedText& text);

// The pre-tokenizer.
class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(const JsonNode& node, bool keep_bytes);

  void apply(Pieces& pieces, Regex::Matcher& matcher) const override;

 private:
  bool add_prefix_space_;
  bool keep_bytes_;
  std::optional<Split> split_;
};

}  // namespace tessera
