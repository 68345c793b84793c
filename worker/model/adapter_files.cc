#include "worker/model/adapter_files.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "worker/errors.h"
#include "worker/model/config_reader.h"
#include "worker/model/stored_weights.h"

namespace tessera {
namespace {

constexpr char kField[] = "peft.adapter_path";
constexpr int64_t kMaxRank = 65536;
// Of LoraConfig: each changes what the adapters compute. None is built; false, 0, empty or null is
// to be without.
constexpr std::array kNotBuilt = {"alora_invocation_tokens",
                                  "alpha_pattern",
                                  "arrow_config",
                                  "exclude_modules",
                                  "fan_in_fan_out",
                                  "kasa_config",
                                  "layer_replication",
                                  "layers_to_transform",
                                  "lora_bias",
                                  "monteclora_config",
                                  "rank_pattern",
                                  "target_parameters",
                                  "trainable_token_indices",
                                  "use_bdlora",
                                  "use_qalora",
                                  "velora_config"};

// Of a model that scores documents.
constexpr char kClassifierTask[] = "SEQ_CLS";
// What PEFT adds to modules_to_save by itself for that task.
constexpr std::array kClassifierModules = {"classifier", "score"};

bool is_classifier_module(const std::string& name) {
  return std::find(kClassifierModules.begin(), kClassifierModules.end(), name) !=
         kClassifierModules.end();
}

std::vector<std::string> one_or_more(const ConfigObject& config, const std::string& field) {
  if (config.is_text(field)) return {config.text_or(field, "")};
  return config.texts(field);
}

void refuse_what_is_not_built(const ConfigObject& config) {
  for (const char* field : kNotBuilt) {
    if (!config.is_off(field)) config.fail_value(field, "which is not built");
  }
  if (config.text_or("bias", "none") != "none") config.fail_value("bias", "only \"none\" is built");
}

}  // namespace

LoraOptions read_adapter_config(const std::filesystem::path& directory) {
  const ConfigFile file(directory / kAdapterConfig, kField);
  const ConfigObject& config = file.root();
  if (config.text_or("peft_type", "") != "LORA")
    config.fail_value("peft_type", "only \"LORA\" is built");
  refuse_what_is_not_built(config);
  LoraOptions options;
  options.rank = config.integer_or("r", 8, 1, kMaxRank);
  options.alpha = config.positive_or("lora_alpha", 8);
  options.dropout = config.share_or("lora_dropout", 0);
  options.target_modules = one_or_more(config, "target_modules");
  for (std::string& name : one_or_more(config, "modules_to_save")) {
    if (config.text_or("task_type", "") == kClassifierTask && is_classifier_module(name)) continue;
    options.modules_to_save.push_back(std::move(name));
  }
  options.rank_stabilized = config.flag("use_rslora", false);
  options.dora = config.flag("use_dora", false);
  return options;
}

bool trains_tied_matrix(DecoderModel& model) {
  return model.tied() && model.layers().front()->parameters().front()->trainable;
}

std::string adapter_config_text(DecoderModel& model, const LoraOptions& options,
                                const std::filesystem::path& base) {
  nlohmann::json config;  // sorts keys, as PEFT does
  config["peft_type"] = "LORA";
  const bool is_classifier = model.config().is_classifier();
  config["task_type"] = is_classifier ? kClassifierTask : "CAUSAL_LM";
  config["base_model_name_or_path"] = base.string();
  config["r"] = options.rank;
  config["lora_alpha"] = options.alpha;
  config["lora_dropout"] = options.dropout;
  config["target_modules"] = adapted_modules(model);
  std::vector<std::string> saved = options.modules_to_save;
  if (is_classifier) {
    std::erase_if(saved, is_classifier_module);
    saved.insert(saved.end(), kClassifierModules.begin(), kClassifierModules.end());
  }
  config["modules_to_save"] = nullptr;
  if (!saved.empty()) config["modules_to_save"] = saved;
  config["use_rslora"] = options.rank_stabilized;
  config["use_dora"] = options.dora;
  config["bias"] = "none";
  config["fan_in_fan_out"] = false;
  config["inference_mode"] = true;
  config["init_lora_weights"] = true;
  // One matrix that is tied stays so: PEFT would train a copy of it otherwise.
  if (trains_tied_matrix(model)) config["ensure_weight_tying"] = true;
  return config.dump(2) + "\n";
}

SafetensorsFile open_adapter(DecoderModel& model, const std::filesystem::path& directory) {
  const ConfigFile config(directory / kAdapterConfig, kField);
  if (trains_tied_matrix(model) && !config.root().flag("ensure_weight_tying", false)) {
    config.root().fail_value("ensure_weight_tying",
                             "and trains a copy of tied embeddings, which is not built");
  }
  SafetensorsFile file = SafetensorsFile::open(directory / kAdapterWeights, kField);
  const auto fail = [&](const std::string& problem) {
    throw UserError(kField, (directory / kAdapterWeights).string() + " " + problem);
  };
  for (const Parameter* parameter : all_parameters(model)) {
    if (!parameter->of_adapter) continue;
    const std::string name = adapter_tensor_name(parameter->name);
    const auto found = file.tensors().find(name);
    if (found == file.tensors().end()) fail("has no tensor " + name);
    if (found->second.shape != parameter->shape) fail("holds " + name + " in another shape");
  }
  return file;
}

}  // namespace tessera
