#include "worker/data/tokenizer_config.h"

#include <algorithm>
#include <charconv>

#include "worker/data/vocabulary.h"

namespace tessera {
namespace {

constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr size_t kMaxSpecialTokens = 1 << 20;

std::optional<bool> flag(const JsonNode& root, std::string_view key) {
  const auto node = root.find(key);
  if (!node) return std::nullopt;
  return node->boolean();
}

std::string text(const JsonNode& root, std::string_view key) {
  const auto node = root.find(key);
  return node && node->is_string() ? std::string(node->string()) : "";
}

bool is_standard(std::string_view key) {
  return std::find(std::begin(kNames), std::end(kNames), key) != std::end(kNames);
}

class Reader {
 public:
  Reader(const std::filesystem::path& directory, const std::string& field)
      : directory_(directory), field_(field) {}

  TokenizerConfig read() {
    for (const auto* name : kNames) config_.named.push_back({.name = name, .token = {}});
    with("tokenizer_config.json", [&](const JsonNode& root) { read_config(root); });
    if (!config_.has_added) {
      with("special_tokens_map.json", [&](const JsonNode& root) { read_map(root); });
      with("added_tokens.json", [&](const JsonNode& root) { read_added(root); });
    }
    with("config.json", [&](const JsonNode& root) { read_model(root); });
    config_.link_named();
    return std::move(config_);
  }

 private:
  template <typename Read>
  void with(const char* name, Read read) {
    if (!std::filesystem::exists(directory_ / name)) return;
    const JsonFile file(directory_ / name, field_);
    read(file.root());
  }

  void set(std::string_view key, const JsonNode& root) {
    const auto node = root.find(key);
    for (auto& named : config_.named) {
      if (named.name != key) continue;
      named.given = true;
      named.token = node ? added_token_of(*node, true) : AddedToken{};
    }
  }

  void add_extra(const JsonNode& list) {
    config_.extra.clear();
    const auto tokens = list.elements();
    if (tokens.size() > kMaxSpecialTokens) list.fail("is too long");
    for (const JsonNode& token : tokens) config_.extra.push_back(added_token_of(token, true));
  }

  void name(std::string_view key, const JsonNode& token) {
    config_.named.push_back({std::string(key), added_token_of(token, true), true});
    if (config_.named.size() > kMaxSpecialTokens) token.fail("is one name too many");
  }

  void read_config(const JsonNode& root) {
    for (const auto& [key, value] : root.object()) {
      if (is_standard(key)) {
        set(key, root);
      } else if (key.ends_with("_token") && (value.is_string() || value.is_object())) {
        name(key, root.at(key));
      }
    }
    const auto extra = root.find("extra_special_tokens");
    config_.has_extra = extra.has_value();
    if (extra && extra->is_object()) {
      for (const auto& [key, value] : extra->object()) name(key, extra->at(key));
    } else if (extra) {
      add_extra(*extra);
    }
    if (const auto more = root.find("additional_special_tokens"); more && config_.extra.empty()) {
      add_extra(*more);
      config_.has_extra = true;
    }
    if (const auto decoder = root.find("added_tokens_decoder")) read_decoder(*decoder);
    read_options(root);
  }

  void read_options(const JsonNode& root) {
    config_.declared_class = text(root, "tokenizer_class");
    config_.add_bos_token = flag(root, "add_bos_token");
    config_.add_eos_token = flag(root, "add_eos_token");
    config_.add_prefix_space = flag(root, "add_prefix_space");
    config_.do_lower_case = flag(root, "do_lower_case");
    config_.tokenize_chinese_chars = flag(root, "tokenize_chinese_chars");
    config_.strip_accents = flag(root, "strip_accents");
    config_.legacy = root.boolean("legacy", false);
    config_.clean_up_tokenization_spaces = root.boolean("clean_up_tokenization_spaces", false);
    config_.split_special_tokens = root.boolean("split_special_tokens", false);
    if (const auto count = root.find("extra_ids")) {
      config_.extra_ids = count->integer();
      if (config_.extra_ids < 0 || config_.extra_ids > 100'000) count->fail("is out of range");
    }
  }

  void read_decoder(const JsonNode& decoder) {
    config_.has_added = true;
    for (const auto& [key, value] : decoder.object()) {
      int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= kMaxTokens) {
        decoder.fail("has \"" + std::string(key.substr(0, 64)) + "\", which is no id");
      }
      config_.added[id] = added_token_of(decoder.at(key), false);
    }
  }

  // The older file, whose word counts more than that of tokenizer_config.json.
  void read_map(const JsonNode& root) {
    for (const auto& [key, value] : root.object()) {
      if (is_standard(key)) {
        set(key, root);
      } else if (key == "additional_special_tokens" && value.is_array() && !config_.has_extra) {
        add_extra(root.at(key));
        config_.has_extra = true;
      }
    }
  }

  void read_added(const JsonNode& root) {
    for (const auto& [key, value] : root.object()) {
      int64_t id;
      if (value.get(id) || id < 0 || id >= kMaxTokens) {
        root.fail("has \"" + std::string(key.substr(0, 64)) + "\" with an id out of range");
      }
      const bool special = is_special(key);
      config_.added[id] = {.content = std::string(key), .normalized = !special, .special = special};
    }
  }

  bool is_special(std::string_view content) const {
    const auto matches = [&](const AddedToken& token) { return token.content == content; };
    return std::any_of(config_.named.begin(), config_.named.end(),
                       [&](const auto& named) { return matches(named.token); }) ||
           std::any_of(config_.extra.begin(), config_.extra.end(), matches);
  }

  void read_model(const JsonNode& root) {
    config_.model_class = text(root, "tokenizer_class");
    config_.model_type = text(root, "model_type");
    const auto eos = root.find("eos_token_id");
    if (!eos) return;
    if (!eos->is_array()) {
      config_.model_eos_id = eos->integer();
    } else if (const auto ids = eos->elements(); !ids.empty()) {
      config_.model_eos_id = ids.front().integer();
    }
  }

  const std::filesystem::path& directory_;
  const std::string& field_;
  TokenizerConfig config_;
};

}  // namespace

TokenizerConfig read_tokenizer_config(const std::filesystem::path& directory,
                                      const std::string& field) {
  return Reader(directory, field).read();
}

AddedToken added_token_of(const JsonNode& node, bool special) {
  AddedToken token{.special = true};
  if (node.is_string()) {
    token.content = node.string();
  } else {
    token.content = node.at("content").string();
    token.single_word = node.boolean("single_word", false);
    token.lstrip = node.boolean("lstrip", false);
    token.rstrip = node.boolean("rstrip", false);
    token.special = node.boolean("special", special);
    token.normalized = node.boolean("normalized", !token.special);
  }
  if (token.content.size() > kMaxTokenBytes) node.fail("is too long");
  return token;
}

std::string TokenizerConfig::content_of(std::string_view name) const {
  for (const Named& known : named) {
    if (known.name == name) return known.token.content;
  }
  return "";
}

void TokenizerConfig::link_named() {
  for (Named& known : named) {
    if (!is_standard(known.name) || known.token.content.empty()) continue;
    for (const auto& [id, token] : added) {
      if (token.content == known.token.content) known.token = token;
    }
  }
}

void TokenizerConfig::set_default(std::string_view name, std::string_view content) {
  for (Named& known : named) {
    if (known.name != name || known.given) continue;
    known.given = true;
    known.token = {.content = std::string(content), .special = true};
  }
}

}  // namespace tessera
