#include "worker/model/attention_pieces.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>

#include <algorithm>
#include <limits>

namespace tessera {
namespace {

// Queries of a piece under a window: enough to keep a kernel busy, few enough that the keys it
// looks at in vain are few.
constexpr int64_t kMinWindowBlock = 32;
constexpr int64_t kMaxWindowBlock = 256;

}  // namespace

std::vector<AttentionPiece> attention_pieces(const std::vector<int64_t>& cu_seqlens, int64_t window,
                                             int64_t block) {
  std::vector<AttentionPiece> pieces;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const int64_t begin = cu_seqlens[s], end = cu_seqlens[s + 1];
    const bool windowed = window > 0 && end - begin > window;
    int64_t step = block > 0 ? block : end - begin;
    if (windowed) step = std::min(step, std::clamp(window, kMinWindowBlock, kMaxWindowBlock));
    for (int64_t first = begin; first < end; first += step) {
      const int64_t count = std::min(step, end - first);
      const int64_t key = windowed ? std::max(begin, first - window + 1) : begin;
      pieces.push_back({first, count, key, first + count - key});
    }
  }
  return pieces;
}

at::Tensor piece_mask(const AttentionPiece& piece, int64_t window,
                      const at::TensorOptions& options) {
  // Query i is at key i + before.
  const int64_t before = piece.num_keys - piece.num_queries;
  const at::Tensor hidden = at::full({piece.num_queries, piece.num_keys},
                                     -std::numeric_limits<double>::infinity(), options);
  at::Tensor mask = hidden.triu(before + 1);
  if (window > 0 && piece.num_keys > window) mask.add_(hidden.tril(before - window));
  return mask;
}

at::Tensor token_view(const at::Tensor& x_TNH, int64_t begin, int64_t length) {
  return x_TNH.narrow(0, begin, length).transpose(0, 1).unsqueeze(0);
}

}  // namespace tessera
