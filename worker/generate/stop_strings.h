// Whether the text of a completion has come to a string that ends it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/data/tokenizer.h"

namespace tessera {

// Looks at the text of the completion alone: a string may not begin in the prompt.
class StopStrings {
 public:
  // Both must outlive it. No string may be empty.
  StopStrings(const Tokenizer& tokenizer, const std::vector<std::string>& strings);

  // Whether the text of `completion` holds one of the strings. To be asked after each token; only
  // the last tokens are decoded.
  bool is_in(std::span<const int32_t> completion) const;

 private:
  const Tokenizer& tokenizer_;
  const std::vector<std::string>& strings_;
  size_t num_decoded_ = 0;
};

}  // namespace tessera
