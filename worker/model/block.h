// The layers of a decoder.
#pragma once

#include <memory>

#include "worker/model/config.h"
#include "worker/model/layer.h"

namespace tessera {

// Tokens [T] to embeddings [T, D].
std::unique_ptr<Layer> make_embedding(const ModelConfig& config);
// Block `index`: attention, then the MLP or the experts, each on the normed stream and added to it.
std::unique_ptr<Layer> make_decoder_block(const ModelConfig& config, int64_t index);

}  // namespace tessera
