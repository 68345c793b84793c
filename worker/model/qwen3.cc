// Qwen3: RMSNorm on each head of q and k before RoPE, and no bias in the MLP whatever the config
// says. Source: transformers/models/qwen3/modeling_qwen3.py.
#include "worker/model/families.h"

namespace tessera {

void adjust_qwen3(ModelConfig& config) {
  config.qk_norm = true;
  config.mlp_bias = false;
}

}  // namespace tessera
