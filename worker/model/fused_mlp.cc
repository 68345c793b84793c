#include "worker/model/fused_mlp.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "worker/kernels/tensor_ops.h"

namespace tessera {
namespace {

// Enough rows for matrix products at full speed, few enough to stay in a cache between them.
constexpr int64_t kFastTileTokens = 1024;

// What a chunk of C tokens needs beside its input, used by all chunks in turn.
struct Buffers {
  Buffers(const at::Tensor& x_TD, const GatedMlp& mlp, int64_t tile_tokens)
      : chunk(std::min(tile_tokens > 0 ? tile_tokens : kFastTileTokens, x_TD.size(0))),
        normed_CD(at::empty({chunk, x_TD.size(1)}, x_TD.options())),
        gate_up(at::empty({chunk, mlp.gate_up.width()}, x_TD.options())) {}

  int64_t chunk;
  at::Tensor normed_CD, gate_up;
};

struct Chunk {
  at::Tensor x_CD, normed_CD, gate_up, gate_CF, up_CF;

  Chunk(const at::Tensor& x_TD, const Parameter& norm, double eps, const GatedMlp& mlp,
        const Buffers& buffers, int64_t begin)
      : x_CD(x_TD.narrow(0, begin, std::min(buffers.chunk, x_TD.size(0) - begin))),
        normed_CD(buffers.normed_CD.narrow(0, 0, x_CD.size(0))),
        gate_up(buffers.gate_up.narrow(0, 0, x_CD.size(0))) {
    const int64_t half = gate_up.size(1) / 2;
    gate_CF = gate_up.narrow(1, 0, half);
    up_CF = gate_up.narrow(1, half, half);
    rms_norm_out(normed_CD, x_CD, norm.value, eps);
    mlp.gate_up.forward(gate_up, normed_CD);
  }
};

}  // namespace

void add_mlp_(const at::Tensor& x_TD, const Parameter& norm, double eps, const GatedMlp& mlp,
              int64_t tile_tokens) {
  const Buffers buffers(x_TD, mlp, tile_tokens);
  for (int64_t begin = 0; begin < x_TD.size(0); begin += buffers.chunk) {
    const Chunk c(x_TD, norm, eps, mlp, buffers, begin);
    const at::Tensor& h_CF = c.gate_CF;  // in place
    swiglu_out(h_CF, c.gate_CF, c.up_CF);
    mlp.down.forward(c.x_CD, h_CF, /*residual=*/c.x_CD);
  }
}

void mlp_backward_out(const at::Tensor& grad_x_TD, const at::Tensor& grad_y_TD,
                      const at::Tensor& x_TD, const Parameter& norm, double eps,
                      const GatedMlp& mlp, int64_t tile_tokens) {
  const Buffers buffers(x_TD, mlp, tile_tokens);
  const at::Tensor grad_h = at::empty({buffers.chunk, mlp.gate_up.width() / 2}, x_TD.options());
  Projection::Backward gate_up(mlp.gate_up), down(mlp.down);
  GradientSum norm_gradient(norm);
  for (int64_t begin = 0; begin < x_TD.size(0); begin += buffers.chunk) {
    const Chunk c(x_TD, norm, eps, mlp, buffers, begin);
    const int64_t count = c.x_CD.size(0);
    const at::Tensor grad_y_CD = grad_y_TD.narrow(0, begin, count);
    const at::Tensor grad_h_CF = grad_h.narrow(0, 0, count);
    down.input_gradient(grad_h_CF, grad_y_CD);
    // In place: gate and up become their gradients, and the gradient of h becomes h.
    swiglu_backward_out(c.gate_CF, c.up_CF, grad_h_CF, grad_h_CF, c.gate_CF, c.up_CF);
    down.add_gradients(grad_y_CD, grad_h_CF);
    gate_up.add_gradients(c.gate_up, c.normed_CD);
    const at::Tensor& grad_normed_CD = c.normed_CD;  // not needed any more
    gate_up.input_gradient(grad_normed_CD, c.gate_up);
    rms_norm_backward_out(grad_x_TD.narrow(0, begin, count), norm_gradient.sum(), grad_normed_CD,
                          c.x_CD, norm.value, /*residual=*/grad_y_CD, eps);
  }
  down.finish();
  gate_up.finish();
  norm_gradient.finish();
}

}  // namespace tessera
