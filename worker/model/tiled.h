// Layers that work on each token alone, some tokens at a time (ALST's tiled MLP, arXiv 2506.13996).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "worker/model/layer.h"

namespace tessera {

// A differentiable function of the stream, in which tokens do not see each other, and all its
// parameters.
struct TokenwiseLayer {
  std::function<at::Tensor(const at::Tensor& x_TD, const Stream& stream)> run;
  std::vector<Parameter*> parameters;
};

// layer.run(x_TD), [T, D], over stream.mlp_tile_tokens tokens at a time, so that only a tile of
// what it makes on its way is ever there. Keeps x_TD, and runs each tile once more in backward. The
// gradients of parameters are summed over tiles in float32 and go to their sinks. What is drawn is
// drawn for each tile: other masks than without tiles, of the same odds. `layer` and `stream` must
// live until backward is done.
//
// Runs the layer as it is where one tile holds all tokens, or a parameter has no sink.
at::Tensor run_in_tiles(const at::Tensor& x_TD, const TokenwiseLayer& layer, const Stream& stream);

}  // namespace tessera
