#include "worker/data/character_splits.h"

#include "worker/data/character_classes.h"
#include "worker/data/utf8.h"

namespace tessera {
namespace {

// White space goes, punctuation stands alone.
class BertPreTokenizer final : public PreTokenizer {
 public:
  void apply(Pieces& pieces, Regex::Matcher& matcher) const override {
    spaces_.apply(pieces, matcher);
    punctuation_.apply(pieces, matcher);
  }

 private:
  CharacterSplit spaces_{is_white_space, SplitBehavior::kRemoved};
  CharacterSplit punctuation_{is_punctuation, SplitBehavior::kIsolated};
};

// Calls visit(character, its span) for each character of the piece.
template <typename Visit>
void for_each_character(std::string_view text, Span piece, Visit visit) {
  for (uint32_t at = piece.begin; at < piece.end;) {
    const auto [character, num_bytes] = first_code_point(text.substr(at));
    const uint32_t next = at + static_cast<uint32_t>(num_bytes);
    visit(character, Span{at, next});
    at = next;
  }
}

}  // namespace

CharacterSplit::CharacterSplit(Class matches, SplitBehavior behavior)
    : matches_(std::move(matches)), behavior_(behavior) {}

void CharacterSplit::apply(Pieces& pieces, Regex::Matcher&) const {
  pieces.scratch.clear();
  for (const Span piece : pieces.spans) {
    SplitJoiner joiner(behavior_, pieces.scratch);
    uint32_t done = piece.begin;
    for_each_character(pieces.text.text, piece, [&](char32_t character, Span at) {
      if (!matches_(character)) return;
      if (at.begin > done) joiner.add({done, at.begin}, false);
      joiner.add(at, true);
      done = at.end;
    });
    if (done < piece.end) joiner.add({done, piece.end}, false);
  }
  pieces.spans.swap(pieces.scratch);
}

void WordSplit::apply(Pieces& pieces, Regex::Matcher&) const {
  enum class Kind { kSpace, kWord, kOther };
  pieces.scratch.clear();
  for (const Span piece : pieces.spans) {
    Kind previous = Kind::kSpace;
    for_each_character(pieces.text.text, piece, [&](char32_t character, Span at) {
      const Kind kind = is_word_character(character) ? Kind::kWord
                        : is_white_space(character)  ? Kind::kSpace
                                                     : Kind::kOther;
      if (kind != Kind::kSpace && kind == previous) {
        pieces.scratch.back().end = at.end;
      } else if (kind != Kind::kSpace) {
        pieces.scratch.push_back(at);
      }
      previous = kind;
    });
  }
  pieces.spans.swap(pieces.scratch);
}

FixedLength::FixedLength(const JsonNode& node) : length_(5) {
  if (const auto length = node.find("length")) length_ = length->integer();
  if (length_ < 1) node.at("length").fail("is not at least 1");
}

void FixedLength::apply(Pieces& pieces, Regex::Matcher&) const {
  pieces.scratch.clear();
  for (const Span piece : pieces.spans) {
    int64_t count = 0;
    for_each_character(pieces.text.text, piece, [&](char32_t, Span at) {
      if (count++ % length_ == 0) {
        pieces.scratch.push_back(at);
      } else {
        pieces.scratch.back().end = at.end;
      }
    });
  }
  pieces.spans.swap(pieces.scratch);
}

std::unique_ptr<const PreTokenizer> make_delimiter_split(const JsonNode& node) {
  const auto delimiter = node.at("delimiter").string();
  if (delimiter.empty() ||
      static_cast<size_t>(first_code_point(delimiter).num_bytes) != delimiter.size()) {
    node.at("delimiter").fail("is not one character");
  }
  const char32_t character = first_code_point(delimiter).value;
  return std::make_unique<CharacterSplit>([character](char32_t c) { return c == character; },
                                          SplitBehavior::kRemoved);
}

std::unique_ptr<const PreTokenizer> make_digits(const JsonNode& node) {
  const bool individual = node.boolean("individual_digits", false);
  return std::make_unique<CharacterSplit>(
      is_number, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

std::unique_ptr<const PreTokenizer> make_punctuation(const JsonNode& node) {
  const auto behavior = node.find("behavior");
  return std::make_unique<CharacterSplit>(
      is_punctuation, behavior ? split_behavior_of(*behavior) : SplitBehavior::kIsolated);
}

std::unique_ptr<const PreTokenizer> make_whitespace_split(const JsonNode&) {
  return std::make_unique<CharacterSplit>(is_white_space, SplitBehavior::kRemoved);
}

std::unique_ptr<const PreTokenizer> make_bert(const JsonNode&) {
  return std::make_unique<BertPreTokenizer>();
}

}  // namespace tessera
