#include "worker/data/vocabulary.h"

namespace tessera {

Vocabulary::Vocabulary(const JsonNode& object) {
  for (const auto& [token, value] : object.object()) {
    const auto refuse = [&](const std::string& problem) {
      object.fail("has \"" + std::string(token.substr(0, 64)) + "\" " + problem);
    };
    int64_t id;
    if (value.get(id)) refuse("with an id that is not a whole number");
    if (id < 0 || id >= kMaxTokens) refuse("with the id " + std::to_string(id) + ", out of range");
    if (token.size() > kMaxTokenBytes) refuse("..., a token too long");
    if (ids_.contains(token)) refuse("twice");
    if (id < static_cast<int64_t>(tokens_.size()) && !tokens_[id].empty()) {
      refuse("with the id " + std::to_string(id) + " of another token");
    }
    add(token, static_cast<int32_t>(id));
  }
  if (ids_.empty()) object.fail("is empty");
}

void Vocabulary::add(std::string_view token, int32_t id) {
  if (static_cast<int64_t>(tokens_.size()) <= id) tokens_.resize(id + 1);
  tokens_[id] = token;
  ids_.insert_or_assign(std::string(token), id);
}

std::optional<int32_t> Vocabulary::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace tessera
