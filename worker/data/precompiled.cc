#include "worker/data/precompiled.h"

#include <utf8proc.h>

#include <cstring>
#include <stdexcept>

#include "worker/data/utf8.h"

namespace tessera {
namespace {

// A unit of the double array, as Darts-clone packs it.
struct Unit {
  uint32_t bits;

  bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  uint32_t value() const { return bits & 0x7FFFFFFF; }
  uint32_t label() const { return bits & 0x800000FF; }
  uint32_t offset() const { return bits >> 10 << ((bits & 0x200) >> 6); }
};

std::string decode_base64(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int num_bits = 0;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  for (const char c : text) {
    uint32_t value;
    if (c >= 'A' && c <= 'Z') {
      value = c - 'A';
    } else if (c >= 'a' && c <= 'z') {
      value = c - 'a' + 26;
    } else if (c >= '0' && c <= '9') {
      value = c - '0' + 52;
    } else if (c == '+' || c == '/') {
      value = c == '+' ? 62 : 63;
    } else {
      throw std::invalid_argument("is not base64");
    }
    bits = bits << 6 | value;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes.push_back(static_cast<char>(bits >> num_bits));
    }
  }
  return bytes;
}

Precompiled from_json(const JsonNode& node) {
  try {
    return Precompiled(decode_base64(node.string()));
  } catch (const std::invalid_argument& error) {
    node.fail(error.what());
  }
}

// Bytes of the character the user sees that begins the text.
size_t first_grapheme(std::string_view text) {
  const auto plain = [](char c) { return static_cast<int8_t>(c) >= 0 && c != '\r'; };
  if (plain(text[0]) && (text.size() == 1 || plain(text[1]))) return 1;
  auto [previous, size] = first_code_point(text);
  utf8proc_int32_t state = 0;
  size_t end = size;
  while (end < text.size()) {
    const auto [next, num_bytes] = first_code_point(text.substr(end));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(previous),
                                         static_cast<utf8proc_int32_t>(next), &state)) {
      break;
    }
    previous = next;
    end += num_bytes;
  }
  return end;
}

size_t num_characters(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return count;
}

// `to` takes the place of `from`.
void replace(std::string_view from, std::string_view to, std::vector<Change>& changes) {
  const auto surplus =
      static_cast<int64_t>(num_characters(to)) - static_cast<int64_t>(num_characters(from));
  while (!to.empty()) {
    const auto [character, num_bytes] = first_code_point(to);
    changes.push_back({character, 0});
    to.remove_prefix(num_bytes);
  }
  for (int64_t i = 0; i < surplus; ++i) changes[changes.size() - 1 - i].change = 1;
  if (surplus < 0 && !changes.empty()) changes.back().change += static_cast<int32_t>(surplus);
}

}  // namespace

Precompiled::Precompiled(const JsonNode& node)
    : Precompiled(from_json(node.at("precompiled_charsmap"))) {}

Precompiled::Precompiled(std::string_view charsmap) {
  const auto word_at = [&](size_t offset) {
    uint32_t word = 0;
    for (int i = 3; i >= 0; --i) word = word << 8 | static_cast<uint8_t>(charsmap[offset + i]);
    return word;
  };
  if (charsmap.size() < 4) throw std::invalid_argument("is no map of characters: it is too short");
  const size_t num_units = word_at(0) / 4;
  if (num_units == 0 || num_units > (charsmap.size() - 4) / 4) {
    throw std::invalid_argument("is no map of characters: its trie does not fit in it");
  }
  units_.reserve(num_units);
  for (size_t i = 0; i < num_units; ++i) units_.push_back(word_at(4 + 4 * i));
  texts_ = charsmap.substr(4 + 4 * num_units);
  if (!is_valid_utf8(texts_)) {
    throw std::invalid_argument("is no map of characters: its texts are not UTF-8");
  }
  for (size_t i = 1; i < ascii_has_rule_.size(); ++i) {
    const char c = static_cast<char>(i);
    ascii_has_rule_[i] = find({&c, 1}).has_value();
  }
}

std::optional<std::string_view> Precompiled::find(std::string_view text) const {
  size_t at = Unit{units_[0]}.offset();
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0) break;
    at ^= byte;
    if (at >= units_.size()) return std::nullopt;
    const Unit unit{units_[at]};
    if (unit.label() != byte) return std::nullopt;
    at ^= unit.offset();
    if (at >= units_.size()) return std::nullopt;
    if (!unit.has_leaf()) continue;
    const size_t begin = Unit{units_[at]}.value();
    // A place outside, or inside a character, is no rule.
    if (begin > texts_.size()) return std::nullopt;
    const auto found = std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
    if (!found.empty() && (static_cast<uint8_t>(found[0]) & 0xC0) == 0x80) return std::nullopt;
    return found;
  }
  return std::nullopt;
}

void Precompiled::apply(AlignedText& text) const {
  constexpr size_t kMaxGraphemeBytes = 5;
  std::vector<Change> changes;
  bool changed = false;
  std::string_view rest = text.text;
  const auto try_rule = [&](std::string_view part) {
    if (part.size() == 1 && !ascii_has_rule_[static_cast<uint8_t>(part[0])]) return false;
    const auto to = find(part);
    if (to) replace(part, *to, changes);
    changed |= to.has_value();
    return to.has_value();
  };
  while (!rest.empty()) {
    std::string_view grapheme = rest.substr(0, first_grapheme(rest));
    rest.remove_prefix(grapheme.size());
    if (grapheme.size() <= kMaxGraphemeBytes && try_rule(grapheme)) continue;
    while (!grapheme.empty()) {
      const auto [character, num_bytes] = first_code_point(grapheme);
      if (!try_rule(grapheme.substr(0, num_bytes))) changes.push_back({character, 0});
      grapheme.remove_prefix(num_bytes);
    }
  }
  if (changed) text.transform(changes);
}

}  // namespace tessera
