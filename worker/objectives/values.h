// What a value model says of a batch of completions: at each label, and at the last token of each
// sequence.
//
// V: the L labels of this rank, then the S sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/batch.h"
#include "worker/model/decoder.h"

namespace tessera {

// float32 [V], differentiable. 0 for the last tokens of sequences that other ranks have.
at::Tensor predict_values(DecoderModel& model, const Batch& batch, const ForwardOptions& forward);

// float64 [V]: 1 where a value counts on this rank, else 0 (CompletionTargets::end_counts_S).
at::Tensor value_counts(const Batch& batch);

}  // namespace tessera
