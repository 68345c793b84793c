// Llama, 1 to 3.x: the plain decoder, with biases where config.json asks for them.
// Source: transformers/models/llama.
#include "worker/model/families.h"

namespace tessera {

void read_llama(const ConfigObject& root, ModelConfig& config) {
  read_decoder(root, {.max_positions = 2048}, config);
  if (config.hidden_size % config.num_heads != 0) {
    root.fail_value("hidden_size", "must be a multiple of num_attention_heads = " +
                                       std::to_string(config.num_heads));
  }
  config.qkv_bias = config.o_bias = root.flag("attention_bias", false);
  config.mlp_bias = root.flag("mlp_bias", false);
}

}  // namespace tessera
