// Attention cut into pieces that a kernel takes whole: some queries, and all keys they see.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

struct AttentionPiece {
  int64_t query_begin, num_queries;  // in the stream
  int64_t key_begin, num_keys;       // they end where the queries end
  // Keys are the queries' own tokens: causal, and nothing else is hidden.
  bool is_square() const { return num_keys == num_queries; }
};

// Whole documents where they fit the window, else blocks of at most `block` queries with the
// keys from `window` before the first of them (window 0: from the document's first).
// `block` 0: documents are never cut where the window does not make it necessary.
std::vector<AttentionPiece> attention_pieces(const std::vector<int64_t>& cu_seqlens, int64_t window,
                                             int64_t block);

// Hides what a piece's queries do not see: [num_queries, num_keys], 0 or -infinity, in `options`.
// `window` as above.
at::Tensor piece_mask(const AttentionPiece& piece, int64_t window,
                      const at::TensorOptions& options);

// Tokens [begin, begin + length) of [T, N, H] as the [1, N, length, H] that kernels take.
at::Tensor token_view(const at::Tensor& x_TNH, int64_t begin, int64_t length);

}  // namespace tessera
