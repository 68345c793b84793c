// Cuts pieces by a pattern.
#pragma once

#include <string_view>

#include "worker/data/pre_tokenizer.h"

namespace tessera {

// What becomes of a match: a piece of its own, dropped, joined to the piece before, to the one
// after, or to the matches right beside it.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// {"String": ...} or {"Regex": ...}. Throws UserError.
Regex regex_of(const JsonNode& pattern);

class Split final : public PreTokenizer {
 public:
  explicit Split(const JsonNode& node);
  // With `invert` what lies between the matches counts as the matches.
  Split(Regex regex, SplitBehavior behavior, bool invert = false);

  void apply(Pieces& pieces, Regex::Matcher& matcher) const override;

 private:
  void isolate(std::string_view text, Span piece, Regex::Matcher& matcher,
               std::vector<Span>& out) const;
  void split(std::string_view text, Span piece, Regex::Matcher& matcher,
             std::vector<Span>& out) const;

  Regex regex_;
  SplitBehavior behavior_;
  bool invert_;
};

SplitBehavior split_behavior_of(const JsonNode& node);

// Joins matches and what lies between them as a behavior says. Fed one part after the other, in
// order and without gaps; what comes out goes to `out`.
class SplitJoiner {
 public:
  SplitJoiner(SplitBehavior behavior, std::vector<Span>& out)
      : behavior_(behavior), out_(out), first_(out.size()) {}

  void add(Span part, bool match);
  // Drops what turned out empty.
  void finish();

 private:
  const SplitBehavior behavior_;
  std::vector<Span>& out_;
  const size_t first_;
  bool joins_next_ = false;  // kMergedWithNext: the last one waits for what follows
  bool previous_match_ = false;
  bool has_empty_ = false;
};

// Calls visit(span, is_match) for each match, empty ones too, and each stretch between, in order.
// They cover the piece. The pattern sees the piece alone: anchors and look-behind stop at its ends.
template <typename Visit>
void for_each_part(const Regex& regex, std::string_view text, Span piece, Regex::Matcher& matcher,
                   Visit visit) {
  const std::string_view inside = slice(text, piece);
  const auto absolute = [&](size_t begin, size_t end) {
    return Span{piece.begin + static_cast<uint32_t>(begin),
                piece.begin + static_cast<uint32_t>(end)};
  };
  size_t done = 0;
  bool after_match = false;
  for (size_t from = 0; from <= inside.size();) {
    const auto match = regex.find(inside, from, matcher);
    if (!match) break;
    const bool empty = match->size() == 0;
    if (!empty || match->begin > done || !after_match) {  // none right behind another
      if (match->begin > done) visit(absolute(done, match->begin), false);
      visit(absolute(match->begin, match->end), true);
      after_match = true;
      done = match->end;
    }
    from = match->end;
    if (empty) {  // go on behind the next character
      do ++from;
      while (from < inside.size() && (static_cast<uint8_t>(inside[from]) & 0xC0) == 0x80);
    }
  }
  if (done < inside.size()) visit(absolute(done, inside.size()), false);
}

}  // namespace tessera
