#include "worker/data/prompt_mask.h"

#include <algorithm>

namespace tessera {

void PromptMask::apply(const std::vector<int32_t>& prompt, const Record& record,
                       Example& example) const {
  const auto diverges =
      std::mismatch(prompt.begin(), prompt.end(), example.tokens.begin(), example.tokens.end());
  const auto prefix = diverges.first - prompt.begin();
  if (example.loss_mask.empty()) example.loss_mask.assign(example.tokens.size(), 1);
  std::fill_n(example.loss_mask.begin(), prefix, uint8_t{0});
  if (diverges.first == prompt.end() || has_told_.exchange(true)) return;
  const std::vector<int32_t> rest(diverges.first, prompt.end());
  note_(record.place() + ": the tokens of the prompt end in \"" + tokenizer_.decode(rest) +
        "\", but with the completion after it they are others, as tokens merge over the border or "
        "the chat template writes a prompt alone differently. The loss counts from where they "
        "part; other records may be the same (said once)");
}

}  // namespace tessera
