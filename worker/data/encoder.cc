#include <limits>
#include <stdexcept>

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
  tracked_ = nullptr;

  const auto& post = tokenizer_.post_processor_;
  const auto characters = character_indices(text);
  if (add_special_tokens) offsets.insert(offsets.end(), post.prefix.size(), Span{});
  for (size_t i = 0; i < tracked.size(); ++i) {
    const Span origin = tracked[i].origin;
    const Span offset{characters[origin.begin], characters[origin.end]};
    offsets.push_back(post.trim ? trimmed(offset, tracked[i], i == 0) : offset);
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
  normalized_.tracked = tracked_ != nullptr;
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
      tokenizer_.pre_tokenizer_->apply(pieces_, matcher_);
      encode_pieces(ids);
    }
  }
}

void Encoder::encode_pieces(std::vector<int32_t>& ids) {
  const std::string_view text = pieces_.text.text;
  for (const Span piece : pieces_.spans) {
    const size_t first = ids.size();
    tokenizer_.model_->encode(slice(text, piece), *scratch_, ids);
    if (tracked_ == nullptr) continue;
    uint32_t begin = piece.begin;
    for (size_t i = first; i < ids.size(); ++i) {
      const std::string_view bytes = tokenizer_.bytes_[ids[i]];
      const Span span{begin, begin + static_cast<uint32_t>(bytes.size())};
      const auto from = bytes.find_first_not_of(' ');
      const auto to = bytes.find_last_not_of(' ');
      const bool blank = from == std::string_view::npos;
      const size_t leading = blank ? bytes.size() : from;
      const size_t trailing = blank ? bytes.size() : bytes.size() - 1 - to;
      tracked_->push_back({pieces_.text.origin(span), static_cast<uint32_t>(leading),
                           static_cast<uint32_t>(trailing)});
      begin = span.end;
    }
  }
}

void Encoder::append_added(const AddedToken& token, std::string_view text, Span origin,
                           std::vector<int32_t>& ids) {
  ids.push_back(token.id);
  if (tracked_ == nullptr) return;
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
  tracked_->push_back(tracked);
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
