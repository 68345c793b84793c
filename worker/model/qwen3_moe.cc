// Qwen3-MoE: Qwen3 with experts in place of some MLPs; a sliding window on every layer or none.
// Source: transformers/models/qwen3_moe.
#include <algorithm>

#include "worker/model/qwen_windows.h"

namespace tessera {
namespace {

constexpr int64_t kMaxLayerIndex = int64_t{1} << 24;

// By mlp_only_layers, which lists layers without experts, and decoder_sparse_step, every so
// manyth of which has them.
std::vector<bool> read_layers_with_experts(const ConfigObject& root, int64_t num_layers) {
  const std::vector<int64_t> plain = root.integers("mlp_only_layers");
  const int64_t step = root.integer_or("decoder_sparse_step", 1, 1, kMaxLayerIndex);
  std::vector<bool> in_layer;
  for (int64_t i = 0; i < num_layers; ++i) {
    const bool listed = std::find(plain.begin(), plain.end(), i) != plain.end();
    in_layer.push_back(!listed && (i + 1) % step == 0);
  }
  return in_layer;
}

}  // namespace

void read_qwen3_moe(const ConfigObject& root, ModelConfig& config) {
  read_decoder(root, {.num_kv_heads = 4, .max_positions = 32768}, config);
  config.qk_norm = true;
  config.qkv_bias = config.o_bias = root.flag("attention_bias", false);
  config.windows.assign(config.num_layers, read_qwen_window(root));
  read_experts(root, {.num_experts = 128, .num_experts_per_token = 8}, config);
  ExpertsConfig& experts = config.experts;
  experts.intermediate_size = root.dimension_or("moe_intermediate_size", 768);
  experts.normalize_weights = root.flag("norm_topk_prob", false);
  experts.name = "mlp";
  experts.gate = "gate_proj";
  experts.up = "up_proj";
  experts.down = "down_proj";
  experts.in_layer = read_layers_with_experts(root, config.num_layers);
}

}  // namespace tessera
