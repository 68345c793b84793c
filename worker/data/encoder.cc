#include <algorithm>
#include <limits>
#include <stdexcept>

#include "worker/data/character_classes.h"
#include "worker/data/tokenizer.h"
#include "worker/data/utf8.h"

namespace tessera {
namespace {

// The character that each byte of the text belongs to, and their number at the end.
std::vector<uint32_t> character_indices(std::string_view text) {
  std::vector<uint32_t> indices(text.size() + 1);
  uint32_t count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) ++count;
    indices[i] = count - 1;
  }
  indices[text.size()] = count;
  return indices;
}

}  // namespace

Encoder::Encoder(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), scratch_(tokenizer.model_->make_scratch()) {}

void Encoder::encode(std::string_view text, std::vector<int32_t>& ids, bool add_special_tokens) {
  tracked_ = nullptr;
  encode_all(text, ids, add_special_tokens);
}

void Encoder::encode(std::string_view text, std::vector<int32_t>& ids, std::vector<Span>& offsets,
                     bool add_special_tokens) {
  std::vector<Tracked> tracked;
  tracked_ = &tracked;
  encode_all(text, ids, add_special_tokens);

  const auto& post = tokenizer_.post_processor_;
  const auto characters = character_indices(text);
  if (add_special_tokens) offsets.insert(offsets.end(), post.prefix.size(), Span{});
  for (size_t i = 0; i < tracked.size(); ++i) {
    const Span origin = tracked[i].origin;
    const Span offset{characters[origin.begin], characters[origin.end]};
    const bool first = i == 0 && !(add_special_tokens && post.trim && post.trim->after_prefix);
    offsets.push_back(post.trim ? trimmed(offset, tracked[i], first) : offset);
  }
  if (add_special_tokens) offsets.insert(offsets.end(), post.suffix.size(), Span{});
}

void Encoder::encode_all(std::string_view text, std::vector<int32_t>& ids,
                         bool add_special_tokens) {
  if (text.size() >= std::numeric_limits<uint32_t>::max()) {
    throw std::invalid_argument("the text has 4 GiB or more");
  }
  if (!is_valid_utf8(text)) throw std::invalid_argument("the text is not valid UTF-8");
  const auto& post = tokenizer_.post_processor_;
  if (add_special_tokens) ids.insert(ids.end(), post.prefix.begin(), post.prefix.end());
  parts_.clear();
  tokenizer_.raw_matcher_.split(text, parts_);
  for (const auto& [token, span] : parts_) {
    if (token != nullptr) {
      append_added(*token, slice(text, span), span, ids);
    } else {
      encode_part(slice(text, span), span.begin, ids);
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), post.suffix.begin(), post.suffix.end());
}

void Encoder::encode_part(std::string_view text, uint32_t begin, std::vector<int32_t>& ids) {
  normalized_.tracked = tracked_ != nullptr || tokenizer_.tracks_always_;
  normalized_.assign(text, begin);
  if (tokenizer_.normalizer_) tokenizer_.normalizer_->apply(normalized_);
  inner_parts_.clear();
  tokenizer_.normalized_matcher_.split(normalized_.text, inner_parts_);
  for (const auto& [token, span] : inner_parts_) {
    if (token != nullptr) {
      const Span origin = tracked_ != nullptr ? normalized_.origin(span) : Span{};
      append_added(*token, slice(normalized_.text, span), origin, ids);
    } else {
      pieces_.text.assign(normalized_, span);
      pieces_.spans.assign(1, {0, span.size()});
      if (tokenizer_.pre_tokenizer_) tokenizer_.pre_tokenizer_->apply(pieces_, matcher_);
      encode_pieces(ids);
    }
  }
}

void Encoder::encode_pieces(std::vector<int32_t>& ids) {
  const std::string_view text = pieces_.text.text;
  const auto& model = *tokenizer_.model_;
  for (const Span piece : pieces_.spans) {
    if (tracked_ == nullptr) {
      model.encode(slice(text, piece), *scratch_, ids, nullptr);
      continue;
    }
    const size_t first = ids.size();
    spans_.clear();
    model.encode(slice(text, piece), *scratch_, ids, &spans_);
    for (size_t i = first; i < ids.size(); ++i) {
      const Span span = spans_[i - first];
      // Tokens whose characters are not all known may be said to go further than the text.
      const uint32_t end = std::min(piece.begin + span.end, piece.end);
      const uint32_t begin = std::min(piece.begin + span.begin, end - 1);
      const Span origin = pieces_.text.origin({begin, end});
      tracked_->push_back(model.reads_bytes() ? tracked_bytes(slice(text, {begin, end}), origin)
                                              : tracked_token(tokenizer_.bytes_[ids[i]], origin));
    }
  }
}

void Encoder::append_added(const AddedToken& token, std::string_view text, Span origin,
                           std::vector<int32_t>& ids) {
  ids.push_back(token.id);
  if (tracked_ != nullptr) tracked_->push_back(tracked_token(text, origin));
}

Encoder::Tracked Encoder::tracked_bytes(std::string_view bytes, Span origin) {
  const auto from = bytes.find_first_not_of(' ');
  const auto to = bytes.find_last_not_of(' ');
  const bool blank = from == std::string_view::npos;
  return {.origin = origin,
          .leading_spaces = static_cast<uint32_t>(blank ? bytes.size() : from),
          .trailing_spaces = static_cast<uint32_t>(blank ? bytes.size() : bytes.size() - 1 - to)};
}

// Spaces at the ends of a token as it is written, where a space may have its stand-in.
Encoder::Tracked Encoder::tracked_token(std::string_view text, Span origin) {
  Tracked tracked{.origin = origin};
  constexpr char32_t kSpaceOfByteLevel = 0x120;
  const auto blank = [](char32_t c) { return is_white_space(c) || c == kSpaceOfByteLevel; };
  for (auto rest = text; !rest.empty() && blank(first_code_point(rest).value);) {
    ++tracked.leading_spaces;
    rest.remove_prefix(first_code_point(rest).num_bytes);
  }
  for (auto rest = text; !rest.empty() && blank(last_code_point(rest).value);) {
    ++tracked.trailing_spaces;
    rest.remove_suffix(last_code_point(rest).num_bytes);
  }
  return tracked;
}

Span Encoder::trimmed(Span offset, const Tracked& tracked, bool first) const {
  uint32_t leading = tracked.leading_spaces;
  // A single space at the very front is the one that was added, which takes no room in the text.
  if (tokenizer_.post_processor_.trim->add_prefix_space && leading == 1 &&
      (first || offset.begin == 0)) {
    leading = 0;
  }
  offset.begin = std::min(offset.begin + leading, offset.end);
  if (offset.end >= tracked.trailing_spaces) {
    offset.end = std::max(offset.end - tracked.trailing_spaces, offset.begin);
  }
  return offset;
}

}  // namespace tessera
