// Attention with dropout on its probabilities.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/attention.h"

namespace tessera {

// As attend, with options.dropout above 0: the probabilities are times draw_mask, as in
// transformers' sdpa attention. Slower than the kernels without dropout. Blocks of queries are
// taken one by one, so that the probabilities alive at a time are those of a block; backward
// computes them, and draws their masks, again. Where documents.part is set, q is this rank's, k and
// v are of the whole stream, and masks are those that the whole stream gets.
at::Tensor attend_with_dropout(const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                               const at::Tensor& v_TKH, const Documents& documents,
                               const AttentionOptions& options);

}  // namespace tessera
