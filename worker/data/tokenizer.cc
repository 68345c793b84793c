#include "worker/data/tokenizer.h"

#include <algorithm>

#include "worker/data/byte_level.h"
#include "worker/data/json.h"
#include "worker/data/special_tokens.h"
#include "worker/data/utf8.h"

namespace tessera {
namespace {

// Whether the decoder is ByteLevel; false: there is none.
bool decodes_bytes(const std::optional<JsonNode>& decoder) {
  if (!decoder) return false;
  const auto type = decoder->at("type").string();
  if (type == "ByteLevel") return true;
  if (type == "Sequence") {
    const auto parts = decoder->at("decoders").elements();
    if (parts.size() == 1) return decodes_bytes(parts[0]);
  }
  decoder->fail("is of type " + std::string(type) + ", which is not supported");
}

// An end-of-text token that config.json gives as an id, or the first of several.
std::optional<int64_t> eos_id_of_config(const std::filesystem::path& directory) {
  const auto path = directory / "config.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const JsonFile file(path, kTokenizerField);
  const auto node = file.root().find("eos_token_id");
  if (!node) return std::nullopt;
  if (!node->is_array()) return node->integer();
  const auto ids = node->elements();
  if (ids.empty()) return std::nullopt;
  return ids.front().integer();
}

}  // namespace

Tokenizer::Tokenizer(const std::filesystem::path& directory) {
  const JsonFile file(directory / "tokenizer.json", kTokenizerField);
  const JsonNode root = file.root();
  if (const auto node = root.find("normalizer")) normalizer_ = make_normalizer(*node);
  pre_tokenizer_ = make_pre_tokenizer(root.at("pre_tokenizer"));
  if (!pre_tokenizer_->to_bytes()) {
    root.at("pre_tokenizer")
        .fail("does not end in ByteLevel, and only byte-level BPE is supported");
  }
  model_ = make_token_model(root.at("model"));
  if (const auto node = root.find("post_processor")) post_processor_ = make_post_processor(*node);
  joins_with_spaces_ = !decodes_bytes(root.find("decoder"));
  if (const auto node = root.find("added_tokens")) read_added_tokens(*node);
  read_special_tokens(directory);
  build_matchers();
  build_bytes();
  if (eos_token_.empty()) {
    if (const auto id = eos_id_of_config(directory); id && *id >= 0 && *id < vocab_size()) {
      eos_token_ = token_of(static_cast<int32_t>(*id));
    }
  }
}

void Tokenizer::read_added_tokens(const JsonNode& list) {
  for (const JsonNode& node : list.elements()) {
    const auto content = node.at("content").string();
    if (content.size() > kMaxTokenBytes) node.at("content").fail("is too long");
    if (static_cast<int64_t>(added_.size()) >= kMaxTokens) list.fail("are too many");
    add_token({.content = std::string(content),
               .single_word = node.boolean("single_word", false),
               .lstrip = node.boolean("lstrip", false),
               .rstrip = node.boolean("rstrip", false),
               .normalized = node.boolean("normalized", true),
               .special = node.boolean("special", false)});
  }
}

void Tokenizer::read_special_tokens(const std::filesystem::path& directory) {
  const SpecialTokens named = tessera::read_special_tokens(directory, kTokenizerField);
  eos_token_ = named.eos;
  pad_token_ = named.pad;
  for (const auto& content : named.all) {
    if (!added_ids_.contains(content)) add_token({.content = content, .special = true});
  }
}

// The id is the model's where it has the token, else the next one that is free. (The ids that
// tokenizer.json gives are not read by `tokenizers` either.)
void Tokenizer::add_token(AddedToken token) {
  if (token.content.empty()) return;
  const auto known = id_of(token.content);
  token.id = known ? *known
                   : static_cast<int32_t>(std::max<int64_t>(
                         model_->num_tokens(), static_cast<int64_t>(added_by_id_.size())));
  if (static_cast<int64_t>(added_by_id_.size()) <= token.id) added_by_id_.resize(token.id + 1);
  added_ids_[token.content] = token.id;
  added_.push_back(std::make_unique<AddedToken>(std::move(token)));
  added_by_id_[added_.back()->id] = added_.back().get();
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
  const auto decoded = [&](std::string_view token) {
    if (joins_with_spaces_) return std::string(token);
    return bytes_of_token(token).value_or(std::string(token));
  };
  bytes_.resize(std::max(model_->tokens().size(), added_by_id_.size()));
  for (size_t id = 0; id < model_->tokens().size(); ++id)
    bytes_[id] = decoded(model_->tokens()[id]);
  for (const AddedToken* token : added_by_id_) {
    if (token == nullptr) continue;
    bytes_[token->id] = decoded(token->normalized ? normalized(token->content) : token->content);
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
  return model_->id_of(token);
}

std::string Tokenizer::token_of(int32_t id) const {
  if (id < 0) return "";
  const auto index = static_cast<size_t>(id);
  if (index < added_by_id_.size() && added_by_id_[index] != nullptr) {
    return added_by_id_[index]->content;
  }
  return index < model_->tokens().size() ? model_->tokens()[index] : "";
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  bool first = true;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || bytes_[id].empty()) continue;
    const bool added = static_cast<size_t>(id) < added_by_id_.size() && added_by_id_[id] != nullptr;
    if (skip_special_tokens && added && added_by_id_[id]->special) continue;
    if (joins_with_spaces_ && !first) bytes.push_back(' ');
    first = false;
    bytes += bytes_[id];
  }
  return to_valid_utf8(bytes);
}

}  // namespace tessera
