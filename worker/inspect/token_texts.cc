#include "worker/inspect/token_texts.h"

namespace tessera {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";  // what part of a character decodes to
constexpr size_t kMaxPending = 8;                    // tokens that one character may take

}  // namespace

// Tokens before `shown` are done. Those from `context` on are decoded with the next one, as what a
// token stands for may depend on the one before it.
std::vector<std::string> token_texts(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::vector<std::string> texts(ids.size());
  size_t context = 0, shown = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string before = tokenizer.decode(ids.subspan(context, shown - context));
    const std::string after = tokenizer.decode(ids.subspan(context, i + 1 - context));
    const bool is_last = i + 1 == ids.size() || i + 1 - shown >= kMaxPending;
    if (after.ends_with(kReplacement) && !is_last) continue;
    if (after.size() > before.size()) texts[i] = after.substr(before.size());
    context = shown;
    shown = i + 1;
  }
  return texts;
}

}  // namespace tessera
