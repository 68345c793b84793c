#include "worker/trainer/frozen.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "worker/errors.h"
#include "worker/model/stored_weights.h"
#include "worker/trainer/model_options.h"

namespace tessera {
namespace {

template <typename Options>
ReferenceOptions options_of(const Options& options, const std::string& method) {
  ReferenceOptions out;
  out.is_wanted = true;
  out.path = options.ref_model();
  out.field = "method." + method + ".ref_model";
  out.is_precomputed = options.precompute_ref_log_probs();
  out.precompute_rows = options.precompute_ref_batch_size();
  if (options.sync_ref_model()) {
    out.sync_steps = options.ref_model_sync_steps();
    out.sync_share = options.ref_model_mixup_alpha();
  }
  return out;
}

// Whether the policy without its adapters is what it began as.
bool begins_as_its_base(const v1::Peft& peft) {
  return peft.adapter_path().empty() && peft.lora_modules_to_save().empty();
}

// Of methods whose reference is the model before training.
template <typename Options>
ReferenceOptions online_options(const Options& options, bool is_wanted) {
  ReferenceOptions out;
  out.is_wanted = is_wanted;
  if constexpr (requires { options.sync_ref_model(); }) {
    if (options.sync_ref_model()) {
      out.sync_steps = options.ref_model_sync_steps();
      out.sync_share = options.ref_model_mixup_alpha();
    }
  }
  return out;
}

}  // namespace

ReferenceOptions reference_options(const v1::Method& method) {
  if (method.has_dpo()) return options_of(method.dpo(), "dpo");
  if (method.has_kto()) return options_of(method.kto(), "kto");
  if (method.has_grpo()) return online_options(method.grpo(), method.grpo().beta() != 0);
  if (method.has_rloo()) return online_options(method.rloo(), method.rloo().beta() != 0);
  if (method.has_online_dpo()) return online_options(method.online_dpo(), /*is_wanted=*/true);
  if (method.has_ppo()) {
    ReferenceOptions out = online_options(method.ppo(), /*is_wanted=*/true);
    out.path = method.ppo().ref_model();
    out.field = "method.ppo.ref_model";
    return out;
  }
  return {};
}

std::optional<ModelSource> reference_in_memory(const v1::JobSpec& spec) {
  const ReferenceOptions reference = reference_options(spec.method());
  if (!reference.is_wanted || reference.is_precomputed) return std::nullopt;
  if (!reference.path.empty()) return ModelSource{reference.path, reference.field};
  if (spec.has_peft() && begins_as_its_base(spec.peft())) return std::nullopt;
  return ModelSource{spec.model().path(), "model.path",
                     /*has_adapter=*/!spec.peft().adapter_path().empty()};
}

std::optional<ModelSource> reference_to_precompute(const v1::JobSpec& spec) {
  const ReferenceOptions reference = reference_options(spec.method());
  if (!reference.is_precomputed || reference.path.empty()) return std::nullopt;
  return ModelSource{reference.path, reference.field};
}

std::optional<ModelSource> teacher_of_job(const v1::JobSpec& spec) {
  if (!spec.method().has_gkd()) return std::nullopt;
  return ModelSource{spec.method().gkd().teacher_model_name_or_path(),
                     "method.gkd.teacher_model_name_or_path"};
}

void freeze(DecoderModel& model) {
  for (const auto& layer : model.layers()) {
    for (Parameter* parameter : layer->parameters()) parameter->trainable = false;
  }
  for (Parameter* parameter : model.head_parameters()) parameter->trainable = false;
}

std::unique_ptr<DecoderModel> make_frozen_layers(const v1::JobSpec& spec, const ModelSource& source,
                                                 const ModelConfig& policy) {
  const ModelConfig config = read_config_of(source, policy);
  auto model = std::make_unique<DecoderModel>(config, spec.memory().head_chunk_tokens(),
                                              spec.memory().mlp_tile_tokens());
  // What adapters train beside them is not quantized in the policy either.
  if (source.has_adapter) {
    lora_pass(spec, *model);
  } else {
    freeze(*model);
  }
  quantize_pass(spec, *model);
  freeze(*model);
  return model;
}

std::unique_ptr<TrainableModel> build_frozen(const v1::JobSpec& spec, const ModelSource& source,
                                             const ModelConfig& policy, const Mesh& mesh,
                                             at::Device device) {
  return std::make_unique<TrainableModel>(shard_model(
      spec, make_frozen_layers(spec, source, policy), mesh, device, ModelRole::kFrozen));
}

void load_frozen(const v1::JobSpec& spec, const ModelSource& source, TrainableModel& model,
                 int rank) {
  v1::JobSpec of_source = spec;
  if (!source.has_adapter) of_source.mutable_peft()->clear_adapter_path();
  naming_its_field(source, [&] {
    const WeightFiles weights = WeightFiles::open(source.path);
    check_weights(*model.model, weights);
    load_weights(of_source, model, weights, rank);
  });
}

void check_frozen(const v1::JobSpec& spec, const ModelConfig& policy) {
  for (const auto& source :
       {reference_in_memory(spec), reference_to_precompute(spec), teacher_of_job(spec)}) {
    if (!source) continue;
    const auto layers = make_frozen_layers(spec, *source, policy);
    naming_its_field(*source, [&] { check_weights(*layers, WeightFiles::open(source->path)); });
  }
}

void sync_reference(const TrainableModel& policy, const TrainableModel& reference, double share) {
  const c10::AutoGradMode no_grad(false);
  TORCH_CHECK(policy.units.size() == reference.units.size(), "they are not of the same layers");
  for (size_t i = 0; i < policy.units.size(); ++i) {
    const ShardedUnit& from = *policy.units[i];
    TORCH_CHECK(from.layout().numel == reference.units[i]->layout().numel, from.layout().name,
                " has another layout in the reference");
    reference.units[i]->shard().mul_(1 - share).add_(from.shard(), share);
  }
  reference.weights_changed();
}

}  // namespace tessera
