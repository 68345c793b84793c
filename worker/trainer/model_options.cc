#include "worker/trainer/model_options.h"

#include "proto/spec/method_fields.h"
#include "worker/errors.h"
#include "worker/model/dropout.h"
#include "worker/model/families.h"

namespace tessera {

ModelConfig model_of_job(const v1::JobSpec& spec, ModelConfig config) {
  config.hidden_dropout = spec.model().hidden_dropout();
  const spec::MethodFields method = spec::method_fields(spec.method());
  if (method.disable_dropout) {
    config.hidden_dropout = 0;
    config.attention_dropout = 0;
  }
  if (spec.method().has_reward()) config.num_labels = 1;
  // Neither transformers' models that score documents nor TRL's divergence have it in their loss.
  if (spec.method().has_reward() || spec.method().has_gkd() || spec.method().has_online_dpo())
    config.experts.router_aux_loss_coef = 0;
  if (!method.router_aux_loss_coef) return config;
  const double coefficient = *method.router_aux_loss_coef;
  if (coefficient != 0 && config.experts.num_experts == 0) {
    const std::string field = method.field("router_aux_loss_coef");
    throw UserError(field, field + " is " + std::to_string(coefficient) + ", and a " +
                               config.model_type + " model has no experts to balance");
  }
  config.experts.router_aux_loss_coef = coefficient;
  return config;
}

v1::JobSpec without_adapters(const v1::JobSpec& spec) {
  v1::JobSpec whole = spec;
  whole.clear_peft();
  return whole;
}

std::optional<ClassifierConfig> classifier_config(const ModelConfig& config) {
  if (!config.is_classifier()) return std::nullopt;
  return ClassifierConfig{std::string(find_model_family(config.model_type)->class_name),
                          config.score_pad_token_id};
}

ForwardOptions training_forward(const v1::JobSpec& spec, const ModelConfig& config,
                                const MicrobatchOfStep& microbatch) {
  const auto number = [](int64_t value) { return static_cast<uint64_t>(value); };
  ForwardOptions options;
  options.training = true;
  options.draw = make_draw({number(spec.training().seed()), number(microbatch.step),
                            number(microbatch.index), number(microbatch.data_rank)});
  options.aux_loss_weight =
      config.experts.router_aux_loss_coef / static_cast<double>(microbatch.count);
  return options;
}

}  // namespace tessera
