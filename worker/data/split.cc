#include "worker/data/split.h"

#include <algorithm>
#include <stdexcept>

namespace tessera {

SplitBehavior split_behavior_of(const JsonNode& node) {
  const auto name = node.string();
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  node.fail("is \"" + std::string(name) + "\", which is no behavior of Split");
}

Regex regex_of(const JsonNode& pattern) {
  try {
    if (const auto literal = pattern.find("String")) {
      return Regex(literal->string(), Regex::Syntax::kLiteral);
    }
    return Regex(pattern.at("Regex").string());
  } catch (const std::invalid_argument& error) {
    pattern.fail(std::string("cannot be used: ") + error.what());
  }
}

Split::Split(const JsonNode& node)
    : Split(regex_of(node.at("pattern")), split_behavior_of(node.at("behavior")),
            node.boolean("invert", false)) {}

Split::Split(Regex regex, SplitBehavior behavior, bool invert)
    : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

void Split::apply(Pieces& pieces, Regex::Matcher& matcher) const {
  pieces.scratch.clear();
  for (const Span piece : pieces.spans) {
    if (behavior_ == SplitBehavior::kIsolated) {
      isolate(pieces.text.text, piece, matcher, pieces.scratch);
    } else {
      split(pieces.text.text, piece, matcher, pieces.scratch);
    }
  }
  pieces.spans.swap(pieces.scratch);
}

void Split::isolate(std::string_view text, Span piece, Regex::Matcher& matcher,
                    std::vector<Span>& out) const {
  for_each_part(regex_, text, piece, matcher, [&](Span part, bool) {
    if (part.size() > 0) out.push_back(part);
  });
}

void Split::split(std::string_view text, Span piece, Regex::Matcher& matcher,
                  std::vector<Span>& out) const {
  SplitJoiner joiner(behavior_, out);
  for_each_part(regex_, text, piece, matcher,
                [&](Span part, bool match) { joiner.add(part, match != invert_); });
  joiner.finish();
}

void SplitJoiner::add(Span part, bool match) {
  bool join = false;
  switch (behavior_) {
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kRemoved:
      if (match) return;
      break;
    case SplitBehavior::kMergedWithPrevious:
      join = match && !previous_match_;
      break;
    case SplitBehavior::kMergedWithNext:
      join = joins_next_ && !match;
      joins_next_ = match;
      break;
    case SplitBehavior::kContiguous:
      join = match == previous_match_;
      break;
  }
  previous_match_ = match;
  if (join && out_.size() > first_) {
    out_.back().end = part.end;
  } else {
    out_.push_back(part);
    has_empty_ |= part.size() == 0;
  }
}

void SplitJoiner::finish() {
  if (!has_empty_) return;
  out_.erase(std::remove_if(out_.begin() + static_cast<ptrdiff_t>(first_), out_.end(),
                            [](Span part) { return part.size() == 0; }),
             out_.end());
}

}  // namespace tessera
