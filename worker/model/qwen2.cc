// Qwen2 and 2.5: biases on q, k and v, and on nothing else; a sliding window on some layers.
// Source: transformers/models/qwen2.
#include "worker/model/qwen_windows.h"

namespace tessera {

void read_qwen2(const ConfigObject& root, ModelConfig& config) {
  read_decoder(root, {.num_kv_heads = 32, .max_positions = 32768}, config);
  config.qkv_bias = true;
  read_qwen_windows(root, config);
}

}  // namespace tessera
