#include "worker/data/character_normalizers.h"

#include <algorithm>
#include <functional>

#include "worker/data/byte_level.h"
#include "worker/data/character_classes.h"
#include "worker/data/utf8.h"

namespace tessera {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<int8_t>(c) >= 0; });
}

template <typename Visit>
void for_each_character(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const auto [character, num_bytes] = first_code_point(text);
    visit(character);
    text.remove_prefix(num_bytes);
  }
}

// A character that is left stands for those dropped behind it too, as in `tokenizers`.
template <typename Keep>
void filter(AlignedText& text, Keep keep) {
  std::vector<Change> changes;
  size_t skipped = 0;
  bool dropped = false;
  for_each_character(text.text, [&](char32_t c) {
    if (keep(c)) {
      changes.push_back({c, 0});
      return;
    }
    dropped = true;
    if (changes.empty()) {
      ++skipped;
    } else {
      --changes.back().change;
    }
  });
  if (dropped) text.transform(changes, skipped);
}

template <typename Map>
void map(AlignedText& text, Map map) {
  std::vector<Change> changes;
  bool changed = false;
  for_each_character(text.text, [&](char32_t c) {
    changes.push_back({map(c), 0});
    changed |= changes.back().character != c;
  });
  if (changed) text.transform(changes);
}

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_line_space(char32_t c) { return c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

void Lowercase::apply(AlignedText& text) const {
  if (is_ascii(text.text)) {  // each byte stays where it is
    for (char& c : text.text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 'a' - 'A' : c);
    return;
  }
  std::vector<Change> changes;
  for_each_character(text.text, [&](char32_t c) {
    constexpr char32_t kDottedI = 0x130, kDotAbove = 0x307;
    if (c == kDottedI) {  // the one that becomes two
      changes.insert(changes.end(), {{U'i', 0}, {kDotAbove, 1}});
    } else {
      changes.push_back({lowercase(c), 0});
    }
  });
  text.transform(changes);
}

StripSpace::StripSpace(const JsonNode& node)
    : left_(node.at("strip_left").boolean()), right_(node.at("strip_right").boolean()) {}

void StripSpace::apply(AlignedText& text) const {
  std::string_view rest = text.text;
  size_t begin = 0;
  while (left_ && !rest.empty() && is_white_space(first_code_point(rest).value)) {
    begin += first_code_point(rest).num_bytes;
    rest.remove_prefix(first_code_point(rest).num_bytes);
  }
  while (right_ && !rest.empty() && is_white_space(last_code_point(rest).value)) {
    rest.remove_suffix(last_code_point(rest).num_bytes);
  }
  if (rest.size() == text.text.size()) return;
  AlignedBuilder out(text);
  out.copy({static_cast<uint32_t>(begin), static_cast<uint32_t>(begin + rest.size())});
  text = out.take();
}

void StripAccents::apply(AlignedText& text) const { filter(text, std::not_fn(is_mark)); }

void Nmt::apply(AlignedText& text) const {
  filter(text, [](char32_t c) {
    return !((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
             c == 0x8F || c == 0x9F);
  });
  map(text, [](char32_t c) {
    const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xFEFF || c == 0xFFFD;
    return space ? U' ' : c;
  });
}

Prepend::Prepend(const JsonNode& node) : content_(node.at("prepend").string()) {}

void Prepend::apply(AlignedText& text) const {
  if (text.text.empty()) return;
  AlignedBuilder out(text);
  out.insert(content_, 0);
  out.copy({0, static_cast<uint32_t>(text.text.size())});
  text = out.take();
}

BertNormalizer::BertNormalizer(const JsonNode& node)
    : clean_text_(node.at("clean_text").boolean()),
      chinese_(node.at("handle_chinese_chars").boolean()),
      lowercase_(node.at("lowercase").boolean()),
      strip_accents_(node.boolean("strip_accents", lowercase_)) {}

void BertNormalizer::apply(AlignedText& text) const {
  if (clean_text_) {
    filter(text, [](char32_t c) {
      return c != 0 && c != 0xFFFD && (is_line_space(c) || !is_control(c));
    });
    map(text, [](char32_t c) { return is_line_space(c) || is_white_space(c) ? U' ' : c; });
  }
  if (chinese_ && !is_ascii(text.text)) {
    std::vector<Change> changes;
    for_each_character(text.text, [&](char32_t c) {
      if (is_chinese(c)) {
        changes.insert(changes.end(), {{U' ', 0}, {c, 1}, {U' ', 1}});
      } else {
        changes.push_back({c, 0});
      }
    });
    text.transform(changes);
  }
  if (strip_accents_) {
    nfd_.apply(text);
    if (!is_ascii(text.text)) filter(text, std::not_fn(is_nonspacing_mark));
  }
  if (lowercase_) Lowercase().apply(text);
}

void ByteLevelNormalizer::apply(AlignedText& text) const { map_to_byte_level(text); }

}  // namespace tessera
