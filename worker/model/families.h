// The decoder families, one row each (families.cc); what is special to one stands in its own file.
#pragma once

#include <string>
#include <string_view>

#include "worker/model/config.h"
#include "worker/model/config_reader.h"

namespace tessera {

struct ModelFamily {
  std::string_view model_type;  // as in config.json
  std::string_view class_name;  // of transformers' classes: "Llama" of LlamaForCausalLM
  // Fills all but model_type and unused_fields. Throws UserError for what the family does not have.
  void (*read)(const ConfigObject& root, ModelConfig& config);
};

// Null when there is none of that type.
const ModelFamily* find_model_family(std::string_view model_type);
// For error messages: "llama, qwen3".
std::string model_family_names();

// What a family takes for a field that config.json does not have: the values of its configuration
// class in transformers.
struct DecoderDefaults {
  int64_t num_kv_heads = 0;  // 0: num_attention_heads
  int64_t head_dim = 0;      // 0: hidden_size / num_attention_heads
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  int64_t max_positions = 2048;
};
// Reads what all families have: sizes, norms, rotary positions, tied weights, attention dropout.
void read_decoder(const ConfigObject& root, const DecoderDefaults& defaults, ModelConfig& config);

struct ExpertsDefaults {
  int64_t num_experts;
  int64_t num_experts_per_token;
};
// Reads what mixtures have in common: the numbers of experts, and what the auxiliary loss counts.
void read_experts(const ConfigObject& root, const ExpertsDefaults& defaults, ModelConfig& config);

void read_llama(const ConfigObject& root, ModelConfig& config);
void read_mistral(const ConfigObject& root, ModelConfig& config);
void read_qwen2(const ConfigObject& root, ModelConfig& config);
void read_qwen3(const ConfigObject& root, ModelConfig& config);
void read_qwen3_moe(const ConfigObject& root, ModelConfig& config);
void read_mixtral(const ConfigObject& root, ModelConfig& config);

}  // namespace tessera
