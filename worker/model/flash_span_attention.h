// span_attention.h on CUDA in 16-bit types: LibTorch's flash kernel, once for all spans that lie
// side by side.
#pragma once

#include "worker/model/span_attention.h"

namespace tessera {

// Of queries that has_flash_attention() (worker/model/flash_attention.h).
void add_flash_attention_(const AttentionSums& sums, const SpanInputs& inputs);
void add_flash_attention_gradients_(const AttentionGradients& grads, const AttendedTo& attended,
                                    const SpanInputs& inputs);

}  // namespace tessera
