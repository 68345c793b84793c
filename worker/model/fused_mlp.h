// The MLP half of a block forward and backward, past autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/projection.h"

namespace tessera {

// down(silu(gate(x)) * up(x)).
struct GatedMlp {
  Projection gate_up;  // [gate; up]
  Projection down;
};

// Both functions work on `tile_tokens` at a time (0: as many as are fastest), so that nothing as
// wide as the MLP is ever whole. All tensors are float32 on a CPU.

// x_TD += mlp(rms_norm(x_TD)).
void add_mlp_(const at::Tensor& x_TD, const Parameter& norm, double eps, const GatedMlp& mlp,
              int64_t tile_tokens);

// Of that: writes the gradient of x, from that of the sum and x as it was before. Runs the forward
// again but for the last product. The gradients of the parameters go to their sinks.
void mlp_backward_out(const at::Tensor& grad_x_TD, const at::Tensor& grad_y_TD,
                      const at::Tensor& x_TD, const Parameter& norm, double eps,
                      const GatedMlp& mlp, int64_t tile_tokens);

}  // namespace tessera
