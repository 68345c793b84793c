#include "worker/generate/stop_strings.h"

#include <algorithm>

namespace tessera {
namespace {

// More than tokens whose first bytes the decoder may read otherwise at the beginning of a text.
constexpr size_t kMargin = 8;

}  // namespace

// A token is a byte of text at least, so that so many last tokens hold any string that the last of
// them completes.
StopStrings::StopStrings(const Tokenizer& tokenizer, const std::vector<std::string>& strings)
    : tokenizer_(tokenizer), strings_(strings) {
  for (const std::string& text : strings) num_decoded_ = std::max(num_decoded_, text.size());
  num_decoded_ += kMargin;
}

bool StopStrings::is_in(std::span<const int32_t> completion) const {
  if (strings_.empty()) return false;
  const std::string text =
      tokenizer_.decode(completion.last(std::min(completion.size(), num_decoded_)));
  return std::ranges::any_of(
      strings_, [&](const std::string& wanted) { return text.find(wanted) != std::string::npos; });
}

}  // namespace tessera
