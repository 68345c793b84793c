#include "worker/data/tokenizer.h"

#include <algorithm>

#include "worker/data/byte_level.h"
#include "worker/data/utf8.h"

namespace tessera {

// Adds tokens as `tokenizers` does: the id is the one the token has, else the next that is free.
// (The ids that tokenizer.json gives are not read there either.)
void Tokenizer::add_tokens(std::vector<AddedToken> tokens) {
  auto next = static_cast<int32_t>(
      std::max<int64_t>(model_->num_tokens(), static_cast<int64_t>(added_by_id_.size())));
  for (AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    token.id = id_of(token.content).value_or(next);
    if (token.id == next) ++next;
    if (static_cast<int64_t>(added_by_id_.size()) <= token.id) added_by_id_.resize(token.id + 1);
    added_ids_[token.content] = token.id;
    if (token.special) special_.insert(token.content);
    token.ignored = config_.split_special_tokens && special_.contains(token.content);
    added_.push_back(std::make_unique<AddedToken>(std::move(token)));
    added_by_id_[added_.back()->id] = added_.back().get();
  }
}

std::vector<std::pair<std::string, std::string>> Tokenizer::named_tokens() const {
  std::vector<std::pair<std::string, std::string>> tokens;
  for (const auto& named : config_.named) {
    if (!named.token.content.empty()) tokens.emplace_back(named.name, named.token.content);
  }
  return tokens;
}

void Tokenizer::build_matchers() {
  for (const AddedToken* token : added_by_id_) {
    if (token == nullptr) continue;
    if (token->normalized) {
      normalized_matcher_.add(normalized(token->content), token);
    } else {
      raw_matcher_.add(token->content, token);
    }
  }
}

void Tokenizer::build_bytes() {
  const auto decoded = [&](std::string token) {
    if (!decodes_bytes_) return token;
    return bytes_of_token(token).value_or(token);
  };
  const auto& tokens = model_->vocabulary().tokens();
  bytes_.resize(std::max(tokens.size(), added_by_id_.size()));
  skipped_.resize(bytes_.size());
  for (size_t id = 0; id < tokens.size(); ++id) bytes_[id] = decoded(tokens[id]);
  for (const AddedToken* token : added_by_id_) {
    if (token == nullptr) continue;
    const auto text = token->normalized ? normalized(token->content) : token->content;
    bytes_[token->id] = decoded(text);
    skipped_[token->id] = special_.contains(text);
  }
}

std::string Tokenizer::normalized(std::string_view text) const {
  AlignedText aligned;
  aligned.assign(text, 0);
  if (normalizer_) normalizer_->apply(aligned);
  return std::move(aligned.text);
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  if (const auto added = added_ids_.find(token); added != added_ids_.end()) return added->second;
  return model_->vocabulary().id_of(token);
}

std::string Tokenizer::token_of(int32_t id) const {
  if (id < 0) return "";
  const auto index = static_cast<size_t>(id);
  if (index < added_by_id_.size() && added_by_id_[index] != nullptr) {
    return added_by_id_[index]->content;
  }
  const auto& tokens = model_->vocabulary().tokens();
  return index < tokens.size() ? tokens[index] : "";
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || bytes_[id].empty()) continue;
    if (skip_special_tokens && skipped_[id]) continue;
    decodes_bytes_ ? void(text += bytes_[id]) : tokens.push_back(bytes_[id]);
  }
  if (decodes_bytes_) return to_valid_utf8(text);
  if (decoder_) decoder_->apply(tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!decoder_ && i > 0) text.push_back(' ');
    text += tokens[i];
  }
  const bool clean = config_.clean_up_tokenization_spaces && !model_->is_bpe();
  return clean ? clean_up_spaces(std::move(text)) : text;
}

}  // namespace tessera
