// Where the documents of a batch are scored.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/batch.h"

namespace tessera {

// Of each sequence of a batch.
struct ScoredRows {
  // int64 [S]: the row, among this rank's tokens, of the token at which it is scored; any row where
  // another rank has that token.
  at::Tensor rows_S;
  // float32 [S]: 1 where this rank has the token, else 0. Undefined: it has them all.
  at::Tensor here_S;
};
// On `device`. Sizes follow from the batch's shape alone.
ScoredRows scored_rows(const Batch& batch, at::Device device);

}  // namespace tessera
