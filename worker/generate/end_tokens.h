// The tokens that end what a model says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "worker/data/tokenizer.h"

namespace tessera {

// Those that generation_config.json of the model's directory names, else config.json's, and the
// tokenizer's; ascending, each once. Empty: none is known. Throws UserError("model.path") where a
// file is malformed.
std::vector<int32_t> end_tokens(const std::filesystem::path& model, const Tokenizer& tokenizer);

}  // namespace tessera
