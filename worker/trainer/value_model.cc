#include "worker/trainer/value_model.h"

#include "proto/spec/method_fields.h"
#include "worker/model/stored_weights.h"
#include "worker/trainer/model_options.h"

namespace tessera {
namespace {

ModelConfig value_config(const v1::JobSpec& spec, const ModelSource& source,
                         const ModelConfig& policy) {
  ModelConfig config = read_config_of(source, policy);
  config.num_labels = 1;
  config.score_pad_token_id = config.pad_token_id;
  config.hidden_dropout = spec.model().hidden_dropout();
  if (spec::method_fields(spec.method()).disable_dropout)
    config.hidden_dropout = config.attention_dropout = 0;
  // transformers' classifiers have it in no loss.
  config.experts.router_aux_loss_coef = 0;
  return config;
}

}  // namespace

std::optional<ModelSource> value_model_of_job(const v1::JobSpec& spec) {
  if (!spec.method().has_ppo()) return std::nullopt;
  return ModelSource{spec.method().ppo().value_model_path(), "method.ppo.value_model_path"};
}

std::unique_ptr<DecoderModel> make_value_layers(const v1::JobSpec& spec,
                                                const ModelConfig& policy) {
  const ModelSource source = value_model_of_job(spec).value();
  auto model = std::make_unique<DecoderModel>(value_config(spec, source, policy),
                                              spec.memory().head_chunk_tokens(),
                                              spec.memory().mlp_tile_tokens());
  recompute_pass(spec, *model);
  return model;
}

std::unique_ptr<TrainableModel> build_value_model(const v1::JobSpec& spec,
                                                  const ModelConfig& policy, const Mesh& mesh,
                                                  at::Device device) {
  if (!value_model_of_job(spec)) return nullptr;
  return std::make_unique<TrainableModel>(shard_model(
      without_adapters(spec), make_value_layers(spec, policy), mesh, device, ModelRole::kValue));
}

std::vector<std::string> load_value_model(const v1::JobSpec& spec, TrainableModel& model,
                                          int rank) {
  const ModelSource source = value_model_of_job(spec).value();
  return naming_its_field(source, [&] {
    const WeightFiles weights = WeightFiles::open(source.path);
    check_weights(*model.model, weights);
    load_weights(without_adapters(spec), model, weights, rank);
    return new_scores(*model.model, weights);
  });
}

void check_value_model(const v1::JobSpec& spec, const ModelConfig& policy) {
  const auto source = value_model_of_job(spec);
  if (!source) return;
  const auto layers = make_value_layers(spec, policy);
  naming_its_field(*source, [&] { check_weights(*layers, WeightFiles::open(source->path)); });
}

ExportOptions value_export(const v1::JobSpec& spec, const TrainableModel& model,
                           ExportOptions options, const std::filesystem::path& directory) {
  options.directory = directory;
  options.model_source = value_model_of_job(spec).value().path;
  options.classifier = classifier_config(model.model->config());
  return options;
}

}  // namespace tessera
