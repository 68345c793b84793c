// A decoder as a Hugging Face config.json describes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "worker/model/rope_config.h"

namespace tessera {

// A layer of experts, in place of the MLP (a mixture of experts).
struct ExpertsConfig {
  int64_t num_experts = 0;
  int64_t num_experts_per_token = 0;
  int64_t intermediate_size = 0;      // of one expert
  bool normalize_weights = true;      // the chosen experts' weights sum to 1
  bool weights_in_float = false;      // weights are applied in float32, whatever the compute dtype
  double router_aux_loss_coef = 0.0;  // what the load-balancing loss counts in the loss
  std::string name;                   // of the layer: "mlp"
  std::string gate, up, down;         // of an expert's matrices: "gate_proj", ...
  std::vector<bool> in_layer;         // by layer: experts, or else the plain MLP
};

struct ModelConfig {
  std::string model_type;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  int64_t pad_token_id = -1;  // its embedding gets no gradient, as in transformers; -1: none
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;            // RMSNorm on each head of q and k
  double attention_dropout = 0.0;  // share of attention probabilities zeroed in training
  double hidden_dropout = 0.0;     // of embeddings and of what each half of a block adds
  // By layer: tokens that one sees, itself the last of them; 0: all before it. Empty: 0 everywhere.
  std::vector<int64_t> windows;
  ExpertsConfig experts;
  // Scores of a document, in place of the vocabulary's log-probabilities; 0: a language model.
  int64_t num_labels = 0;
  // A document is scored at its last token but for these at its end; -1: at its last.
  int64_t score_pad_token_id = -1;
  double initializer_range = 0.02;  // standard deviation of a new matrix of scores

  // Fields of config.json that neither the family nor anything else here has a use for.
  std::vector<std::string> unused_fields;

  bool is_classifier() const { return num_labels > 0; }
  int64_t window(int64_t layer) const { return windows.empty() ? 0 : windows[layer]; }
  bool has_experts(int64_t layer) const {
    return !experts.in_layer.empty() && experts.in_layer[layer];
  }
  // Whether any layer has experts.
  bool is_mixture() const;
};

// Reads directory/config.json. Throws UserError("model.path", ...) naming the file, the field, its
// value and the rule it breaks: missing, of the wrong type, out of bounds, or asking for what is
// not built.
ModelConfig read_model_config(const std::filesystem::path& directory);

}  // namespace tessera
