// Mistral: Llama without biases, and a sliding window on every layer.
// Source: transformers/models/mistral.
#include "worker/model/families.h"

namespace tessera {

namespace {

constexpr int64_t kDefaultWindow = 4096;

}  // namespace

void read_mistral(const ConfigObject& root, ModelConfig& config) {
  read_decoder(root, {.num_kv_heads = 8, .max_positions = 131072}, config);
  const bool given = root.mentions("sliding_window");
  const int64_t window = root.dimension_or("sliding_window", given ? 0 : kDefaultWindow);
  config.windows.assign(config.num_layers, window);
}

}  // namespace tessera
