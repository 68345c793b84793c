// The text of a completion while it is made.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "worker/data/tokenizer.h"

namespace tessera {

// Special tokens have no text here.
class TextStream {
 public:
  // The tokenizer outlives this.
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // What the text of `completion` has more than what was returned so far, in whole characters:
  // bytes that later tokens may make a character of stay behind. The completion only grows.
  std::string next(std::span<const int32_t> completion);
  // The rest, when no more tokens come.
  std::string rest(std::span<const int32_t> completion);

 private:
  std::string take(std::span<const int32_t> completion, bool is_last);

  const Tokenizer& tokenizer_;
  // Tokens [context_, told_) were told last; decoded again with what follows, they say whether a
  // space stands between.
  size_t context_ = 0, told_ = 0;
};

}  // namespace tessera
