// NEFTune (arXiv 2310.05914): noise on the embeddings while a model is trained.
#pragma once

#include <memory>

#include "worker/model/layer.h"

namespace tessera {

// `embedding` with noise on its output, uniform within alpha / sqrt(L * D) on either side, L being
// the length of the token's document. None in an evaluation. Stream::draw names the noise.
std::unique_ptr<Layer> make_noisy_embedding(std::unique_ptr<Layer> embedding, double alpha);

}  // namespace tessera
