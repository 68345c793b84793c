#include "worker/data/prompt_mask.h"

#include <algorithm>

namespace tessera {

size_t PromptMask::completion_begin(const std::vector<int32_t>& prompt,
                                    std::span<const int32_t> tokens, const Record& record) const {
  const auto diverges = std::mismatch(prompt.begin(), prompt.end(), tokens.begin(), tokens.end());
  const auto prefix = static_cast<size_t>(diverges.first - prompt.begin());
  if (diverges.first == prompt.end() || has_told_.exchange(true)) return prefix;
  const std::vector<int32_t> rest(diverges.first, prompt.end());
  note_(record.place() + ": the tokens of the prompt end in \"" + tokenizer_.decode(rest) +
        "\", but with the completion after it they are others, as tokens merge over the border or "
        "the chat template writes a prompt alone differently. The loss counts from where they "
        "part; other records may be the same (said once)");
  return prefix;
}

void PromptMask::apply(const std::vector<int32_t>& prompt, const Record& record,
                       Example& example) const {
  const size_t prefix = completion_begin(prompt, example.tokens, record);
  if (example.loss_mask.empty()) example.loss_mask.assign(example.tokens.size(), 1);
  std::fill_n(example.loss_mask.begin(), prefix, uint8_t{0});
}

}  // namespace tessera
