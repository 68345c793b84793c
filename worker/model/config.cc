#include "worker/model/config.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "worker/errors.h"
#include "worker/model/families.h"

namespace tessera {
namespace {

// Fields that change nothing of what a model computes in training.
constexpr std::array<std::string_view, 40> kFieldsWithoutEffect = {
    "_name_or_path",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_experts_implementation",
    "add_cross_attention",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "max_position_embeddings",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_bfloat16",
    "use_cache",
};

void refuse_what_no_family_has(const ConfigObject& root) {
  const std::string activation = root.text_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    root.fail_value("hidden_act", "only \"silu\" is built");
  }
  if (!root.flag("is_causal", true)) root.fail_value("is_causal", "only true is built");
  for (const char* field : {"quantization_config", "per_layer_config"}) {
    if (root.has(field)) root.fail(std::string("has a ") + field + ", which is not built");
  }
}

// The embedding whose gradient is dropped. A negative id counts from the end, as torch has it.
int64_t read_pad_token(const ConfigObject& root, int64_t vocab_size) {
  if (!root.has("pad_token_id")) return -1;
  const int64_t id = root.integer_or("pad_token_id", 0, -vocab_size, vocab_size - 1);
  return id < 0 ? vocab_size + id : id;
}

void check_heads(const ConfigObject& root, const ModelConfig& config) {
  if (config.num_heads % config.num_kv_heads != 0) {
    root.fail("has num_key_value_heads = " + std::to_string(config.num_kv_heads) +
              ", must divide num_attention_heads = " + std::to_string(config.num_heads));
  }
  const bool dynamic = config.rope.type == RopeConfig::Type::kDynamic;
  if (config.head_dim % 2 != 0 || config.head_dim < (dynamic ? 4 : 2)) {
    root.fail("has head_dim = " + std::to_string(config.head_dim) + ", must be even and above " +
              (dynamic ? "2 with dynamic rope scaling" : "0"));
  }
}

}  // namespace

bool ModelConfig::is_mixture() const {
  return std::find(experts.in_layer.begin(), experts.in_layer.end(), true) !=
         experts.in_layer.end();
}

void read_decoder(const ConfigObject& root, const DecoderDefaults& defaults, ModelConfig& config) {
  config.vocab_size = root.dimension("vocab_size");
  config.hidden_size = root.dimension("hidden_size");
  config.intermediate_size = root.dimension("intermediate_size");
  config.num_layers = root.dimension("num_hidden_layers");
  config.num_heads = root.dimension("num_attention_heads");
  const bool heads_given = root.mentions("num_key_value_heads") || defaults.num_kv_heads == 0;
  config.num_kv_heads = root.dimension_or("num_key_value_heads",
                                          heads_given ? config.num_heads : defaults.num_kv_heads);
  const bool width_given = root.mentions("head_dim") || defaults.head_dim == 0;
  config.head_dim = root.dimension_or(
      "head_dim", width_given ? config.hidden_size / config.num_heads : defaults.head_dim);
  config.rms_norm_eps = root.positive_or("rms_norm_eps", defaults.rms_norm_eps);
  config.rope =
      read_rope_config(root, defaults.rope_theta,
                       root.dimension_or("max_position_embeddings", defaults.max_positions));
  config.pad_token_id = read_pad_token(root, config.vocab_size);
  config.tie_word_embeddings = root.flag("tie_word_embeddings", false);
  config.attention_dropout = root.share_or("attention_dropout", 0);
  config.initializer_range = root.positive_or("initializer_range", 0.02);
  check_heads(root, config);
}

void read_experts(const ConfigObject& root, const ExpertsDefaults& defaults, ModelConfig& config) {
  // transformers 5 writes num_local_experts for all families.
  const int64_t named = root.dimension_or("num_experts", defaults.num_experts);
  ExpertsConfig& experts = config.experts;
  experts.num_experts = root.dimension_or("num_local_experts", named);
  experts.num_experts_per_token = root.integer_or(
      "num_experts_per_tok", defaults.num_experts_per_token, 1, experts.num_experts);
  experts.router_aux_loss_coef = root.number_or("router_aux_loss_coef", 0.001);
}

ModelConfig read_model_config(const std::filesystem::path& directory) {
  if (!std::filesystem::is_directory(directory)) {
    throw UserError("model.path", "model.path " + directory.string() + " is not a directory");
  }
  const ConfigFile file(directory / "config.json");
  const ConfigObject& root = file.root();
  ModelConfig config;
  config.model_type = root.text_or("model_type", "");
  const ModelFamily* family = find_model_family(config.model_type);
  if (family == nullptr) root.fail_value("model_type", "must be one of " + model_family_names());
  refuse_what_no_family_has(root);
  family->read(root, config);
  for (std::string& field : root.unread()) {
    const bool known = std::find(kFieldsWithoutEffect.begin(), kFieldsWithoutEffect.end(), field) !=
                       kFieldsWithoutEffect.end();
    if (!known) config.unused_fields.push_back(std::move(field));
  }
  return config;
}

}  // namespace tessera
