// span_attention.h by kernels that take one rectangle of queries and keys: ATen's flash kernel on a
// CPU, matrix products elsewhere.
#pragma once

#include "worker/model/span_attention.h"

namespace tessera {

void add_attention_of_pieces_(const AttentionSums& sums, const SpanInputs& inputs);
void add_attention_of_pieces_gradients_(const AttentionGradients& grads, const AttendedTo& attended,
                                        const SpanInputs& inputs);

// Adds attention to other keys: out_BNH of any type and lse_NB in float32, of the queries in rows
// [row, row + B).
void merge_(const AttentionSums& sums, int64_t row, const at::Tensor& out_BNH,
            const at::Tensor& lse_NB);

}  // namespace tessera
