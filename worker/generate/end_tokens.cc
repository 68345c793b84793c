#include "worker/generate/end_tokens.h"

#include <set>

#include "worker/data/json.h"

namespace tessera {
namespace {

// A file's eos_token_id: a number or a list. False: there is none.
bool read_ids(const std::filesystem::path& path, std::set<int32_t>& ids) {
  if (!std::filesystem::exists(path)) return false;
  const JsonFile file(path, "model.path");
  const auto value = file.root().find("eos_token_id");
  if (!value) return false;
  if (!value->is_array()) {
    ids.insert(static_cast<int32_t>(value->integer()));
    return true;
  }
  for (const JsonNode& id : value->elements()) ids.insert(static_cast<int32_t>(id.integer()));
  return true;
}

}  // namespace

std::vector<int32_t> end_tokens(const std::filesystem::path& model, const Tokenizer& tokenizer) {
  std::set<int32_t> ids;
  if (!read_ids(model / "generation_config.json", ids)) read_ids(model / "config.json", ids);
  if (!tokenizer.eos_token().empty()) {
    if (const auto id = tokenizer.id_of(tokenizer.eos_token())) ids.insert(*id);
  }
  return {ids.begin(), ids.end()};
}

}  // namespace tessera
