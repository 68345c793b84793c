// Tokens between the ranks that share a stream: from each rank's two chunks to the whole, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/batch.h"

namespace tessera {

// x_TKH: this rank's tokens. Returns all tokens of the stream, in its order, charged to
// Owner::kCommunication. Beside the result it takes half as much for a while. Not differentiable.
at::Tensor gather_stream(const at::Tensor& x_TKH, const StreamPart& part);
// The counterpart for gradients: grad_UKH holds what this rank adds to the gradient of each token
// of the stream. Returns the sum over ranks of what they add to this rank's tokens, made in float32
// and then of grad_UKH's type.
at::Tensor scatter_stream_sum(const at::Tensor& grad_UKH, const StreamPart& part);

// gather_stream(), differentiable. `part` must live until backward is done.
at::Tensor gathered_stream(const at::Tensor& x_TKH, const StreamPart& part);

}  // namespace tessera
