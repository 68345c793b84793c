// NEFTune (arXiv 2310.05914): noise on the embeddings while a model is trained.
#pragma once

#include <cstdint>
#include <memory>

#include "worker/model/layer.h"

namespace tessera {

// Which noise is drawn: the same numbers give the same noise on one kind of device, so that a
// resumed run repeats it.
struct NoiseDraw {
  int64_t seed = 0;
  int64_t step = 0;
  int64_t microbatch = 0;
  int rank = 0;
};

// `embedding` with noise on its output, uniform within alpha / sqrt(L * D) on either side, L being
// the length of the token's document. None where autograd is off: an evaluation is of the model
// itself. `draw` is read at each forward and must outlive this.
std::unique_ptr<Layer> make_noisy_embedding(std::unique_ptr<Layer> embedding, double alpha,
                                            const NoiseDraw& draw);

}  // namespace tessera
