// Qwen3: RMSNorm on each head of q and k before RoPE; a sliding window on some layers.
// Source: transformers/models/qwen3.
#include "worker/model/qwen_windows.h"

namespace tessera {

void read_qwen3(const ConfigObject& root, ModelConfig& config) {
  read_decoder(root, {.num_kv_heads = 32, .head_dim = 128, .max_positions = 32768}, config);
  config.qk_norm = true;
  config.qkv_bias = config.o_bias = root.flag("attention_bias", false);
  read_qwen_windows(root, config);
}

}  // namespace tessera
