#include "worker/data/special_tokens.h"

#include <algorithm>

#include "worker/data/json.h"

namespace tessera {
namespace {

constexpr const char* kFiles[] = {"tokenizer_config.json", "special_tokens_map.json"};
constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr const char* kLists[] = {"extra_special_tokens", "additional_special_tokens"};

// "</s>", or {"content": "</s>", ...}.
std::string content_of(const JsonNode& token) {
  return std::string(token.is_string() ? token.string() : token.at("content").string());
}

}  // namespace

SpecialTokens read_special_tokens(const std::filesystem::path& directory,
                                  const std::string& field) {
  SpecialTokens tokens;
  const auto add = [&](const std::string& token) {
    if (token.empty()) return;
    if (std::find(tokens.all.begin(), tokens.all.end(), token) != tokens.all.end()) return;
    tokens.all.push_back(token);
  };
  for (const auto* name : kFiles) {
    if (!std::filesystem::exists(directory / name)) continue;
    const JsonFile file(directory / name, field);
    for (const std::string key : kNames) {
      const auto node = file.root().find(key);
      if (!node) continue;
      const std::string token = content_of(*node);
      if (key == "eos_token" && tokens.eos.empty()) tokens.eos = token;
      if (key == "pad_token" && tokens.pad.empty()) tokens.pad = token;
      add(token);
    }
    for (const auto* key : kLists) {
      const auto node = file.root().find(key);
      if (!node || !node->is_array()) continue;  // an object names tokens for other models
      for (const JsonNode& token : node->elements()) add(content_of(token));
    }
  }
  return tokens;
}

}  // namespace tessera
