// The fields of a Hugging Face config.json that the decoder families read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

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
  double rope_theta = 10000.0;
  int64_t pad_token_id = -1;  // its embedding gets no gradient, as in transformers; -1: none
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // on q, k, v and o
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm on each head of q and k; set by the family
};

// Reads directory/config.json. Throws UserError("model.path", ...) naming the file, the field and
// what is wrong with it: missing, of the wrong type, out of bounds, or asking for what is not
// built.
ModelConfig read_model_config(const std::filesystem::path& directory);

}  // namespace tessera
