// Causal attention within documents.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/batch.h"

namespace tessera {

// q_TNH [T, N, H], k_TKH and v_TKH [T, K, H] with K dividing N: query head n reads key/value head
// n * K / N. Returns [T, N, H]. A token sees itself and the tokens before it in its own document,
// nothing else: each document is attended on its own, without a mask. Scores are scaled by 1 /
// sqrt(H).
at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                  const Documents& documents);

}  // namespace tessera
