#include "worker/data/byte_level.h"

#include <algorithm>
#include <array>

#include "worker/data/utf8.h"

namespace tessera {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char32_t kFirstStandIn = 0x100;
constexpr char32_t kNumCharacters = 0x144;

constexpr bool printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

// A printable byte stands for itself, as a Latin-1 character; the others take U+0100 and up, in
// order.
struct Alphabet {
  std::array<char32_t, 256> characters{};
  std::array<int16_t, kNumCharacters> bytes{};

  constexpr Alphabet() {
    bytes.fill(-1);
    char32_t stand_in = kFirstStandIn;
    for (int byte = 0; byte < 256; ++byte) {
      characters[byte] = printable(byte) ? static_cast<char32_t>(byte) : stand_in++;
      bytes[characters[byte]] = static_cast<int16_t>(byte);
    }
  }
};
constexpr Alphabet kAlphabet;

// A space in front of each piece that has none, standing for what the piece's first character
// stands for.
void add_prefix_spaces(Pieces& pieces) {
  const auto& text = pieces.text.text;
  const auto bare = [&](Span piece) { return text[piece.begin] != ' '; };
  if (std::none_of(pieces.spans.begin(), pieces.spans.end(), bare)) return;
  AlignedBuilder out(pieces.text);
  for (Span& piece : pieces.spans) {
    const Span from = piece;
    piece.begin = static_cast<uint32_t>(out.size());
    if (bare(from)) out.insert(" ", from.begin);
    out.copy(from);
    piece.end = static_cast<uint32_t>(out.size());
  }
  pieces.text = out.take();
}

}  // namespace

char32_t byte_level_character(uint8_t byte) { return kAlphabet.characters[byte]; }

std::optional<uint8_t> byte_level_byte(char32_t character) {
  if (character >= kNumCharacters || kAlphabet.bytes[character] < 0) return std::nullopt;
  return static_cast<uint8_t>(kAlphabet.bytes[character]);
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const auto [character, num_bytes] = first_code_point(token);
    const auto byte = byte_level_byte(character);
    if (!byte) return std::nullopt;
    bytes.push_back(static_cast<char>(*byte));
    token.remove_prefix(num_bytes);
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes)
    append_utf8(byte_level_character(static_cast<uint8_t>(byte)), token);
  return token;
}

void map_to_byte_level(AlignedText& text) {
  AlignedBuilder out(text);
  std::string character;
  for (size_t i = 0; i < text.text.size(); ++i) {
    character.clear();
    append_utf8(byte_level_character(static_cast<uint8_t>(text.text[i])), character);
    out.insert(character, i);
  }
  text = out.take();
}

ByteLevel::ByteLevel(const JsonNode& node, bool keep_bytes)
    : add_prefix_space_(node.boolean("add_prefix_space", true)), keep_bytes_(keep_bytes) {
  if (node.boolean("use_regex", true))
    split_.emplace(Regex(kGpt2Pattern), SplitBehavior::kIsolated);
}

void ByteLevel::apply(Pieces& pieces, Regex::Matcher& matcher) const {
  if (add_prefix_space_) add_prefix_spaces(pieces);
  if (split_) split_->apply(pieces, matcher);
  if (keep_bytes_) return;
  // Bytes below 0x80 that print stay one byte, all others become two.
  std::vector<uint32_t> begins(pieces.text.text.size() + 1);
  for (size_t i = 0; i < pieces.text.text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(pieces.text.text[i]);
    begins[i + 1] = begins[i] + (byte_level_character(byte) < 0x80 ? 1 : 2);
  }
  map_to_byte_level(pieces.text);
  for (Span& piece : pieces.spans) piece = {begins[piece.begin], begins[piece.end]};
}

}  // namespace tessera
