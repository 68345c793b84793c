// Makes a Tokenizer of a directory's files.
#include <algorithm>

#include "worker/data/json.h"
#include "worker/data/precompiled.h"
#include "worker/data/sentencepiece.h"
#include "worker/data/tokenizer.h"
#include "worker/errors.h"

namespace tessera {
namespace {

// The model file of a directory without tokenizer.json.
std::optional<std::filesystem::path> sentencepiece_file_of(const std::filesystem::path& directory) {
  for (const auto* name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"}) {
    if (std::filesystem::exists(directory / name)) return directory / name;
  }
  return std::nullopt;
}

// The first Precompiled of tokenizer.json's normalizers, which classes of Unigram models keep.
std::unique_ptr<const Normalizer> precompiled_of(const std::optional<JsonNode>& normalizer) {
  if (!normalizer) return nullptr;
  if (normalizer->at("type").string() == "Precompiled") return make_normalizer(*normalizer);
  if (normalizer->at("type").string() != "Sequence") return nullptr;
  for (const JsonNode& part : normalizer->at("normalizers").elements()) {
    if (part.at("type").string() == "Precompiled") return make_normalizer(part);
  }
  return nullptr;
}

std::vector<AddedToken> added_tokens_of(const JsonNode& root, TokenizerConfig& config) {
  std::vector<AddedToken> tokens;
  const auto list = root.find("added_tokens");
  if (!list) return tokens;
  for (const JsonNode& node : list->elements()) {
    if (static_cast<int64_t>(tokens.size()) >= kMaxTokens) list->fail("are too many");
    AddedToken token{.content = std::string(node.at("content").string()),
                     .single_word = node.boolean("single_word", false),
                     .lstrip = node.boolean("lstrip", false),
                     .rstrip = node.boolean("rstrip", false),
                     .normalized = node.boolean("normalized", true),
                     .special = node.boolean("special", false)};
    if (token.content.size() > kMaxTokenBytes) node.at("content").fail("is too long");
    const int64_t id = node.at("id").integer();
    if (id < 0 || id >= kMaxTokens) node.at("id").fail("is out of range");
    if (!config.has_added) config.added[id] = token;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// <extra_id_99> and so on, which T5 masks spans with.
std::string extra_id(int64_t index) { return "<extra_id_" + std::to_string(index) + ">"; }

void add_extra_ids(TokenizerConfig& config) {
  if (config.has_extra) return;
  for (int64_t i = 0; i < config.extra_ids; ++i) {
    config.extra.push_back({.content = extra_id(i), .special = true});
  }
}

// As the classes of Unigram models lay their vocabularies out.
UnigramParts unigram_of(const SentencePieceModel& model, std::string_view class_name,
                        const TokenizerConfig& config) {
  UnigramParts parts{.pieces = model.pieces, .unk_id = {}, .byte_fallback = false};
  auto& pieces = parts.pieces;
  if (class_name == "T5Tokenizer") {
    for (int64_t i = config.extra_ids - 1; i >= 0; --i) pieces.push_back({extra_id(i), 0});
    parts.unk_id = 2;
  } else if (class_name == "XLMRobertaTokenizer") {
    pieces.erase(pieces.begin(), pieces.begin() + std::min<ptrdiff_t>(3, std::ssize(pieces)));
    std::vector<UnigramParts::Piece> front;
    for (const auto* name : {"bos_token", "pad_token", "eos_token", "unk_token"}) {
      front.push_back({config.content_of(name), 0});
    }
    pieces.insert(pieces.begin(), front.begin(), front.end());
    pieces.push_back({config.content_of("mask_token"), 0});
    parts.unk_id = 3;
  } else {
    parts.byte_fallback = model.byte_fallback;
    if (model.unk_id >= 0) parts.unk_id = model.unk_id;
  }
  if (parts.unk_id && *parts.unk_id >= std::ssize(pieces)) parts.unk_id = std::nullopt;
  return parts;
}

// Where a class of its own does not say how.
std::string plain_recipe(const SentencePieceModel& model) {
  return std::string(R"({"decoder":{"type":"Sequence","decoders":[{"type":"Replace",)") +
         R"("pattern":{"String":"▁"},"content":" "})" +
         (model.byte_fallback ? R"(,{"type":"ByteFallback"},{"type":"Fuse"})" : "") +
         R"(]},"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"}})";
}

// tokenizer_config.json may give pieces other names.
void rename_pieces(const TokenizerConfig& config, SentencePieceModel& model) {
  const Vocabulary known = bpe_of(model).vocabulary;
  for (const auto& [id, token] : config.added) {
    if (id >= std::ssize(model.pieces) || known.id_of(token.content)) continue;
    model.pieces[id].text = token.content;
  }
}

}  // namespace

bool has_tokenizer(const std::filesystem::path& directory) {
  return std::filesystem::exists(directory / "tokenizer.json") || sentencepiece_file_of(directory);
}

Tokenizer::Tokenizer(const std::filesystem::path& directory)
    : config_(read_tokenizer_config(directory, kTokenizerField)) {
  const TokenizerClass& rules = tokenizer_class_of(directory, config_, kTokenizerField);
  const auto json = directory / "tokenizer.json";
  const auto model_file = sentencepiece_file_of(directory);
  const bool from_json = std::filesystem::exists(json) || !model_file;
  from_json ? read_json(json, rules) : read_sentencepiece(*model_file, rules);
  add_special_tokens();
  if (rules.name == "Qwen2Tokenizer") readd_special_tokens();
  set_around(rules, from_json);
  build_matchers();
  build_bytes();
  eos_token_ = config_.content_of("eos_token");
  pad_token_ = config_.content_of("pad_token");
  const auto eos = config_.model_eos_id;
  if (eos_token_.empty() && eos && *eos >= 0 && *eos < vocab_size()) {
    eos_token_ = token_of(static_cast<int32_t>(*eos));
  }
}

template <typename MakeModel>
void Tokenizer::take_parts(const JsonNode& parts, MakeModel make_model) {
  if (const auto node = parts.find("normalizer")) normalizer_ = make_normalizer(*node);
  const auto pre_tokenizer = parts.find("pre_tokenizer");
  model_ = make_model(pre_tokenizer && ends_in_byte_level(*pre_tokenizer));
  if (pre_tokenizer) {
    pre_tokenizer_ = make_pre_tokenizer(*pre_tokenizer, model_->reads_bytes());
    // Where nothing comes before it, a pre-tokenizer sees where its text begins by itself.
    const bool alone = !normalizer_ && pre_tokenizer->at("type").string() != "Sequence";
    tracks_always_ = pre_tokenizer_->needs_origins() && !alone;
  }
  if (const auto node = parts.find("decoder")) decoder_ = make_decoder(*node);
  decodes_bytes_ = decoder_ && decoder_->is_byte_level();
}

void Tokenizer::read_json(const std::filesystem::path& path, const TokenizerClass& rules) {
  const JsonFile file(path, kTokenizerField);
  const JsonNode root = file.root();
  auto added = added_tokens_of(root, config_);
  config_.link_named();
  for (const auto& [name, content] : rules.defaults) config_.set_default(name, content);
  if (rules.name == "T5Tokenizer") add_extra_ids(config_);
  const auto make_model = [&](const JsonNode& options) {
    return [&, options](bool bytes) { return make_token_model(options, root.at("model"), bytes); };
  };
  if (rules.recipe == nullptr) {
    take_parts(root, make_model(root.at("model")));
    add_tokens(std::move(added));
  } else {
    const JsonFile recipe("the rules of " + std::string(rules.name), rules.recipe(config_),
                          kTokenizerField);
    take_parts(recipe.root(), make_model(recipe.root().at("model")));
    if (!normalizer_ && !model_->is_bpe()) normalizer_ = precompiled_of(root.find("normalizer"));
  }
  if (const auto node = root.find("post_processor")) post_processor_ = make_post_processor(*node);
}

void Tokenizer::read_sentencepiece(const std::filesystem::path& path, const TokenizerClass& rules) {
  auto model = tessera::read_sentencepiece(path, kTokenizerField);
  for (const auto& [name, content] : rules.defaults) config_.set_default(name, content);
  const bool plain = rules.recipe == nullptr;
  if (plain) {
    if (model.bos_id >= 0) config_.set_default("bos_token", model.bos_piece);
    if (model.eos_id >= 0) config_.set_default("eos_token", model.eos_piece);
    if (model.unk_id >= 0) config_.set_default("unk_token", model.unk_piece);
  }
  if (!config_.has_extra) config_.extra = model.added;
  if (rules.name == "T5Tokenizer") add_extra_ids(config_);

  const JsonFile recipe("the rules of " + std::string(rules.name),
                        plain ? plain_recipe(model) : rules.recipe(config_), kTokenizerField);
  const auto options = recipe.root().find("model");
  const bool unigram = plain ? model.is_unigram : options->at("type").string() == "Unigram";
  take_parts(recipe.root(), [&](bool bytes) -> std::unique_ptr<const TokenModel> {
    if (unigram) return std::make_unique<Unigram>(unigram_of(model, rules.name, config_));
    if (bytes || (options && options->at("type").string() != "BPE")) {
      throw UserError(kTokenizerField, path.string() + ": is a SentencePiece model, which " +
                                           std::string(rules.name) + " does not read");
    }
    if (plain) rename_pieces(config_, model);
    BpeParts parts = bpe_of(model);
    parts.fuse_unk = true;
    parts.byte_fallback = plain ? model.byte_fallback : options->boolean("byte_fallback", false);
    if (plain) {
      parts.unk_token = model.unk_piece;
    } else if (const auto unk = options->find("unk_token")) {
      parts.unk_token = unk->string();
    }
    return std::make_unique<Bpe>(std::move(parts), false);
  });
  if (model.charsmap.empty() || !(plain || unigram)) return;
  try {
    std::vector<std::unique_ptr<const Normalizer>> normalizers;
    normalizers.push_back(std::make_unique<Precompiled>(std::string_view(model.charsmap)));
    if (normalizer_) normalizers.push_back(std::move(normalizer_));
    normalizer_ = chain(std::move(normalizers));
  } catch (const std::invalid_argument& error) {
    throw UserError(kTokenizerField, path.string() + ": precompiled_charsmap " + error.what());
  }
}

// Those that files name and the tokenizer does not have yet, or has with other flags.
void Tokenizer::add_special_tokens() {
  std::vector<AddedToken> tokens;
  std::set<std::string, std::less<>> known;
  for (const auto& [content, id] : added_ids_) known.insert(content);
  const auto same = [](const AddedToken& a, const AddedToken& b) {
    return a.content == b.content && a.single_word == b.single_word && a.lstrip == b.lstrip &&
           a.rstrip == b.rstrip && a.normalized == b.normalized && a.special == b.special;
  };
  for (const auto& [id, token] : config_.added) {
    const auto at = added_ids_.find(token.content);
    if (at != added_ids_.end() && same(*added_by_id_[at->second], token)) continue;
    tokens.push_back(token);
    known.insert(token.content);
  }
  for (AddedToken& token : tokens) {
    token.special |= std::any_of(config_.named.begin(), config_.named.end(),
                                 [&](const auto& n) { return n.token.content == token.content; });
  }
  const auto add = [&](AddedToken token) {
    if (token.content.empty() || !known.insert(token.content).second) return;
    tokens.push_back(std::move(token));
  };
  for (const auto& named : config_.named) {
    add(named.token);
    if (!tokens.empty() && tokens.back().content == named.token.content) {
      tokens.back().special = true;
    }
  }
  for (const AddedToken& token : config_.extra) add(token);
  add_tokens(std::move(tokens));
}

// Qwen2's class adds them once more, without any flags of theirs.
void Tokenizer::readd_special_tokens() {
  std::vector<AddedToken> tokens;
  const auto add = [&](const std::string& content) {
    tokens.push_back({.content = content, .special = true});
  };
  for (const auto& named : config_.named) add(named.token.content);
  for (const AddedToken& token : config_.extra) add(token.content);
  add_tokens(std::move(tokens));
}

void Tokenizer::set_around(const TokenizerClass& rules, bool from_json) {
  using Around = TokenizerClass::Around;
  if (rules.around == Around::kFile && from_json) return;
  post_processor_ = {};
  const auto put = [&](std::string_view name, std::vector<int32_t>& ids) {
    const std::string content = config_.content_of(name);
    if (const auto id = content.empty() ? std::nullopt : id_of(content)) ids.push_back(*id);
  };
  if (rules.around == Around::kNamed) {
    put(rules.before, post_processor_.prefix);
    put(rules.after, post_processor_.suffix);
    return;
  }
  // A tokenizer.json has said all there is to say.
  if (from_json) return;
  if (config_.add_bos_token.value_or(false)) put("bos_token", post_processor_.prefix);
  if (config_.add_eos_token.value_or(false)) put("eos_token", post_processor_.suffix);
}

}  // namespace tessera
