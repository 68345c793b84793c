// The special tokens that the files beside a tokenizer.json name.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

struct SpecialTokens {
  std::string eos;  // empty: not named
  std::string pad;
  std::vector<std::string> all;  // these and all others, in the order of the files
};

// Reads tokenizer_config.json and special_tokens_map.json, the first winning, as far as they are
// there. Throws UserError(field).
SpecialTokens read_special_tokens(const std::filesystem::path& directory, const std::string& field);

}  // namespace tessera
