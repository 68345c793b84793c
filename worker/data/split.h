// Cuts pieces by a pattern.
#pragma once

#include <string_view>

#include "worker/data/pre_tokenizer.h"

namespace tessera {

// What becomes of a match: a piece of its own, dropped, joined to the piece before, to the one
// after, or to the matches right beside it.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

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

}  // namespace tessera
