// Attention to tokens whose keys and values were computed before, as generation does it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

class AttentionCache {
 public:
  virtual ~AttentionCache() = default;

  // Keeps k_TKH and v_TKH as those of `layer` (from 0), and attends q_TNH to all that the cache has
  // of each token's sequence up to that token: `window` tokens of them at most (0: no limit).
  // Shapes as attend() has them (worker/model/attention.h). Returns [T, N, H].
  virtual at::Tensor attend(int64_t layer, const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                            const at::Tensor& v_TKH, int64_t window) = 0;
};

}  // namespace tessera
