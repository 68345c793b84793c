// Causal attention within documents.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/batch.h"

namespace tessera {

struct AttentionOutputs;

struct AttentionOptions {
  int64_t window = 0;    // tokens that one sees, itself the last of them; 0: all before it
  double dropout = 0.0;  // share of the probabilities that is zeroed, the others scaled up
  uint64_t draw = 0;     // names the masks of dropout (worker/model/dropout.h)
  // Where there is nothing yet, the outputs are put there; else they are taken from there, and
  // attention is not run (worker/model/kept_attention.h). Null: neither.
  AttentionOutputs* kept = nullptr;
};

// q_TNH [T, N, H], k_TKH and v_TKH [T, K, H] with K dividing N: query head n reads key/value head
// n * K / N. Returns [T, N, H]. A token sees itself and the tokens before it in its own document,
// `window` of them at most, and nothing else: each document is attended on its own. Scores are
// scaled by 1 / sqrt(H). Work and memory grow with length * window, not with length squared. Where
// documents.part is set, T is this rank's part of the stream, the call is collective, and
// `documents` must live until backward is done (worker/model/context_attention.h).
at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                  const Documents& documents, const AttentionOptions& options = {});

}  // namespace tessera
