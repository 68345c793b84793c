#include "worker/rewards/code_block.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr size_t kMinFence = 3;
constexpr size_t kMaxIndent = 3;

struct Fence {
  char mark = 0;
  size_t length = 0;
  std::string_view info;  // what follows on the line
};

std::optional<Fence> fence_of(std::string_view line) {
  const size_t indent = line.find_first_not_of(' ');
  if (indent == std::string_view::npos || indent > kMaxIndent) return std::nullopt;
  line.remove_prefix(indent);
  Fence fence{.mark = line[0]};
  if (fence.mark != '`' && fence.mark != '~') return std::nullopt;
  fence.length = std::min(line.size(), line.find_first_not_of(fence.mark));
  if (fence.length < kMinFence) return std::nullopt;
  fence.info = line.substr(fence.length);
  // ```x``` on one line is code within a paragraph.
  if (fence.mark == '`' && fence.info.find('`') != std::string_view::npos) return std::nullopt;
  return fence;
}

bool closes(const Fence& fence, const Fence& open) {
  return fence.mark == open.mark && fence.length >= open.length &&
         fence.info.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

std::optional<std::string_view> last_code_block(std::string_view text) {
  std::optional<std::string_view> block;
  std::optional<Fence> open;
  size_t block_begin = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.size(), text.find('\n', begin));
    const size_t next = std::min(text.size(), end + 1);
    const std::optional<Fence> fence = fence_of(text.substr(begin, end - begin));
    if (fence && !open) {
      open = fence;
      block_begin = next;
    } else if (fence && closes(*fence, *open)) {
      block = text.substr(block_begin, begin - block_begin);
      open.reset();
    }
    begin = next;
  }
  if (open) block = text.substr(block_begin);
  return block;
}

}  // namespace tessera
