// Where a completion begins.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "worker/data/example.h"
#include "worker/data/record.h"
#include "worker/data/tokenizer.h"

namespace tessera {

// Thread safe. The tokenizer outlives it.
class PromptMask {
 public:
  // `note` gets a line for people, once, from any thread.
  PromptMask(const Tokenizer& tokenizer, std::function<void(const std::string&)> note)
      : tokenizer_(tokenizer), note_(std::move(note)) {}

  // Where the completion begins in `tokens`, a prompt with its completion: where they part from the
  // prompt's own.
  size_t completion_begin(const std::vector<int32_t>& prompt, std::span<const int32_t> tokens,
                          const Record& record) const;
  // Takes the tokens that the example shares with the prompt's own, from the front, out of the
  // loss. Tokens may merge over the border of the two, or a template may write a prompt alone
  // otherwise: then the completion begins where they part.
  void apply(const std::vector<int32_t>& prompt, const Record& record, Example& example) const;

 private:
  const Tokenizer& tokenizer_;
  const std::function<void(const std::string&)> note_;
  mutable std::atomic<bool> has_told_ = false;
};

}  // namespace tessera
