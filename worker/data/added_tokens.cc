#include "worker/data/added_tokens.h"

#include <algorithm>

#include "worker/data/character_classes.h"
#include "worker/data/utf8.h"

namespace tessera {
namespace {

bool touches_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word_character(last_code_point(text.substr(0, begin)).value)) ||
         (end < text.size() && is_word_character(first_code_point(text.substr(end)).value));
}

size_t strip_left(std::string_view text, size_t begin) {
  while (begin > 0) {
    const auto last = last_code_point(text.substr(0, begin));
    if (!is_white_space(last.value)) break;
    begin -= last.num_bytes;
  }
  return begin;
}

size_t strip_right(std::string_view text, size_t end) {
  while (end < text.size()) {
    const auto first = first_code_point(text.substr(end));
    if (!is_white_space(first.value)) break;
    end += first.num_bytes;
  }
  return end;
}

Span span_of(size_t begin, size_t end) {
  return {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
}

}  // namespace

void AddedTokenMatcher::add(std::string_view content, const AddedToken* token) {
  int32_t node = 0;
  for (const char byte : content) {
    const auto [at, is_new] =
        nodes_[node].next.try_emplace(byte, static_cast<int32_t>(nodes_.size()));
    node = at->second;
    if (is_new) nodes_.emplace_back();
  }
  nodes_[node].token = token;
}

AddedTokenMatcher::Match AddedTokenMatcher::longest_at(std::string_view text) const {
  Match longest;
  const Node* node = &nodes_[0];
  for (size_t i = 0; i < text.size(); ++i) {
    const auto next = node->next.find(text[i]);
    if (next == node->next.end()) break;
    node = &nodes_[next->second];
    if (node->token != nullptr) longest = {node->token, i + 1};
  }
  return longest;
}

void AddedTokenMatcher::split(std::string_view text, std::vector<AddedTokenPart>& parts) const {
  std::string first_bytes;
  for (const auto& [byte, node] : nodes_[0].next) first_bytes.push_back(byte);
  size_t done = 0;
  for (size_t at = 0; !first_bytes.empty();) {
    at = first_bytes.size() == 1 ? text.find(first_bytes[0], at)
                                 : text.find_first_of(first_bytes, at);
    if (at == std::string_view::npos) break;
    const Match match = longest_at(text.substr(at));
    if (match.token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + match.length;
    at = end;
    if (match.token->ignored) continue;
    if (match.token->single_word && touches_word(text, begin, end)) continue;
    if (match.token->lstrip) {
      begin = begin > done ? done + strip_left(text.substr(done), begin - done) : done;
    }
    // Where the token before took space along, all up to there is space.
    if (match.token->rstrip) end = strip_right(text, std::max(end, done));
    if (begin >= end) continue;  // that token took this one, which is space itself
    if (begin > done) parts.push_back({nullptr, span_of(done, begin)});
    parts.push_back({match.token, span_of(begin, end)});
    done = end;
  }
  if (done < text.size()) parts.push_back({nullptr, span_of(done, text.size())});
}

}  // namespace tessera
