// Which token wrote which part of a text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/data/tokenizer.h"

namespace tessera {

// What each token adds to the text that they decode to together. A token that ends inside of a
// character adds nothing, the one that completes it the character.
std::vector<std::string> token_texts(const Tokenizer& tokenizer, std::span<const int32_t> ids);

}  // namespace tessera
