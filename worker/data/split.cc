#include "worker/data/split.h"

#include <algorithm>
#include <stdexcept>

namespace tessera {
namespace {

SplitBehavior behavior_of(const JsonNode& node) {
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

// Calls visit(span, is_match) for each match and each stretch between, in order. They cover the
// piece.
template <typename Visit>
void for_each_part(const Regex& regex, std::string_view text, Span piece, Regex::Matcher& matcher,
                   Visit visit) {
  // The pattern sees the piece alone: anchors and look-behind stop at its ends.
  const std::string_view inside = slice(text, piece);
  const auto absolute = [&](size_t begin, size_t end) {
    return Span{piece.begin + static_cast<uint32_t>(begin),
                piece.begin + static_cast<uint32_t>(end)};
  };
  size_t done = 0;
  for (size_t from = 0; from <= inside.size();) {
    const auto match = regex.find(inside, from, matcher);
    if (!match) break;
    if (match->begin > done) visit(absolute(done, match->begin), false);
    if (match->size() > 0) visit(absolute(match->begin, match->end), true);
    done = match->end;
    from = done;
    if (match->size() == 0) {  // go on behind the next character
      do ++from;
      while (from < inside.size() && (static_cast<uint8_t>(inside[from]) & 0xC0) == 0x80);
    }
  }
  if (done < inside.size()) visit(absolute(done, inside.size()), false);
}

}  // namespace

Split::Split(const JsonNode& node)
    : Split(regex_of(node.at("pattern")), behavior_of(node.at("behavior")),
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
  for_each_part(regex_, text, piece, matcher, [&](Span part, bool) { out.push_back(part); });
}

void Split::split(std::string_view text, Span piece, Regex::Matcher& matcher,
                  std::vector<Span>& out) const {
  const size_t first = out.size();
  bool joins_next = false;      // kMergedWithNext: the last of `out` waits for what follows
  bool previous_match = false;  // of the part before
  for_each_part(regex_, text, piece, matcher, [&](Span part, bool found) {
    const bool match = found != invert_;
    bool join = false;
    switch (behavior_) {
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kRemoved:
        if (match) return;
        break;
      case SplitBehavior::kMergedWithPrevious:
        join = match && !previous_match;
        break;
      case SplitBehavior::kMergedWithNext:
        join = joins_next && !match;
        joins_next = match;
        break;
      case SplitBehavior::kContiguous:
        join = match == previous_match;
        break;
    }
    previous_match = match;
    if (join && out.size() > first) {
      out.back().end = part.end;
    } else {
      out.push_back(part);
    }
  });
}

}  // namespace tessera
