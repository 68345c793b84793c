// The embedding's lookup.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/layer.h"

namespace tessera {

// Rows of weight [V, D] by tokens_T: [T, D]. Tokens that are `padding_idx` give no gradient. The
// gradient of the weight goes to its sink: what autograd would make is a whole matrix [V, D].
// `weight` must live until backward is done.
at::Tensor embed(const Parameter& weight, const at::Tensor& tokens_T, int64_t padding_idx);

}  // namespace tessera
