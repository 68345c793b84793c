#include "worker/generate/text_stream.h"

#include <string_view>

namespace tessera {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string TextStream::next(std::span<const int32_t> completion) {
  return take(completion, /*is_last=*/false);
}

std::string TextStream::rest(std::span<const int32_t> completion) {
  return take(completion, /*is_last=*/true);
}

std::string TextStream::take(std::span<const int32_t> completion, bool is_last) {
  const auto text_of = [&](size_t begin, size_t end) {
    return tokenizer_.decode(completion.subspan(begin, end - begin), /*skip_special_tokens=*/true);
  };
  const std::string before = text_of(context_, told_);
  const std::string now = text_of(context_, completion.size());
  if (!is_last && (now.size() <= before.size() || now.ends_with(kReplacement))) return "";
  context_ = told_;
  told_ = completion.size();
  return now.size() > before.size() ? now.substr(before.size()) : "";
}

}  // namespace tessera
