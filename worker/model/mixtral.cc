// Mixtral: Mistral with experts in every layer, and a sliding window only where config.json has
// one. Source: transformers/models/mixtral.
#include "worker/model/families.h"

namespace tessera {

void read_mixtral(const ConfigObject& root, ModelConfig& config) {
  read_decoder(
      root, {.num_kv_heads = 8, .rms_norm_eps = 1e-5, .rope_theta = 1e6, .max_positions = 131072},
      config);
  config.windows.assign(config.num_layers, root.dimension_or("sliding_window", 0));
  if (root.number_or("router_jitter_noise", 0) != 0) {
    root.fail_value("router_jitter_noise", "only 0 is built");
  }
  read_experts(root, {.num_experts = 8, .num_experts_per_token = 2}, config);
  ExpertsConfig& experts = config.experts;
  experts.intermediate_size = config.intermediate_size;
  experts.normalize_weights = true;
  experts.weights_in_float = true;
  experts.name = "block_sparse_moe";
  experts.gate = "w1";
  experts.up = "w3";
  experts.down = "w2";
  experts.in_layer.assign(config.num_layers, true);
}

}  // namespace tessera
