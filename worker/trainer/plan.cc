#include "worker/trainer/plan.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "proto/spec/method_fields.h"
#include "worker/errors.h"
#include "worker/memory/ledger.h"
#include "worker/model/neftune.h"
#include "worker/model/quantized.h"
#include "worker/parallel/offloaded_layer.h"
#include "worker/parallel/recompute.h"
#include "worker/trainer/model_options.h"
#include "worker/trainer/parameter_reader.h"
#include "worker/trainer/peft_options.h"

namespace tessera {
namespace {

struct RefusedCombination {
  bool (*applies)(const v1::JobSpec& spec);
  const char* field;
  const char* sentence;
};

constexpr RefusedCombination kRefused[] = {
    {[](const v1::JobSpec& spec) {
       return spec.method().sft().packing() &&
              spec.method().sft().packing_strategy() != "wrapped" &&
              spec.method().sft().max_length() == 0;
     },
     "method.sft.max_length", "method.sft.max_length is 0, and packing needs a row length above 0"},
    {[](const v1::JobSpec& spec) {
       return spec.method().sft().loss_type() == "dft" &&
              spec.training().label_smoothing_factor() > 0;
     },
     "training.label_smoothing_factor",
     "training.label_smoothing_factor is above 0, and method.sft.loss_type dft takes no smoothed "
     "labels"},
    {[](const v1::JobSpec& spec) {
       return spec.memory().optimizer_in_backward() && spec.training().max_grad_norm() > 0;
     },
     "memory.optimizer_in_backward",
     "memory.optimizer_in_backward updates weights before the norm of all gradients is known, so "
     "that nothing can be clipped by it; set training.max_grad_norm to 0"},
};

Quantization quantization_of(const v1::Peft& peft) {
  if (peft.quantization() == "int8") return Quantization::kInt8;
  if (peft.quantization() != "nf4") return Quantization::kNone;
  return peft.use_bnb_nested_quant() ? Quantization::kNf4Nested : Quantization::kNf4;
}

void noise_pass(const v1::JobSpec& spec, DecoderModel& model) {
  if (!spec.training().has_neftune_noise_alpha()) return;
  std::unique_ptr<Layer>& embedding = model.layers().front();
  embedding = make_noisy_embedding(std::move(embedding), spec.training().neftune_noise_alpha());
}

// Blocks only: backward begins with the head, and nothing of it could stay away for a while.
void offload_pass(const v1::JobSpec& spec, at::Device device, TrainableModel& out) {
  const v1::Memory& memory = spec.memory();
  if (!memory.activation_offloading()) return;
  const bool to_disk = memory.activation_offloading_target() == "disk";
  OffloadOptions options;
  options.device = device;
  options.overlaps = !to_disk && spec.resources().device() == "cuda";
  if (to_disk) {
    options.disk_directory = memory.has_activation_offloading_dir()
                                 ? memory.activation_offloading_dir()
                                 : spec.training().output_dir();
  }
  options.min_bytes = memory.activation_offloading_min_bytes();
  options.max_bytes = memory.activation_offloading_max_bytes();
  out.offload = std::make_unique<ActivationOffload>(options);
  auto& layers = out.model->layers();
  for (size_t i = 1; i < layers.size(); ++i) {
    layers[i] = std::make_unique<OffloadedLayer>(std::move(layers[i]), *out.offload);
  }
}

// What the names of a model's units and blocks begin with.
std::string prefix_of(ModelRole role) { return role == ModelRole::kValue ? "value_model." : ""; }

std::string layer_name(size_t layer) {
  if (layer == 0) return "model.embed_tokens";
  return "model.layers." + std::to_string(layer - 1);
}

struct UnitParameters {
  std::string name;
  BlockId block;
  bool trainable;
  std::vector<Parameter*> parameters;
};

// The units of a layer: of what is trained of it, of what is not, and of what of that is kept as
// bytes, as far as there is any.
std::vector<UnitParameters> split(const std::string& name,
                                  const std::vector<Parameter*>& parameters) {
  std::vector<UnitParameters> units;
  const BlockId block = block_id(name);
  UnitParameters trainable{name, block, true, {}}, frozen{name + ".frozen", block, false, {}},
      quantized{name + ".quantized", block, false, {}};
  for (Parameter* parameter : parameters) {
    UnitParameters& unit = parameter->trainable        ? trainable
                           : parameter->is_quantized() ? quantized
                                                       : frozen;
    unit.parameters.push_back(parameter);
  }
  for (UnitParameters* unit : {&trainable, &frozen, &quantized}) {
    if (!unit->parameters.empty()) units.push_back(std::move(*unit));
  }
  return units;
}

// Those of each layer and of the head. A tied output matrix is the embedding's, so then the final
// norm goes to the embedding, whose units have the head as their second use.
std::vector<std::vector<UnitParameters>> units_of(DecoderModel& model, ModelRole role) {
  const std::string prefix = prefix_of(role);
  std::vector<std::vector<UnitParameters>> units;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    std::vector<Parameter*> parameters = model.layers()[i]->parameters();
    if (i == 0 && model.tied()) {
      const std::vector<Parameter*> head = model.head_parameters();
      parameters.insert(parameters.end(), head.begin(), head.end());
    }
    units.push_back(split(prefix + layer_name(i), parameters));
  }
  if (!model.tied()) units.push_back(split(prefix + "lm_head", model.head_parameters()));
  return units;
}

Sharding sharding_of(const v1::Memory& memory) {
  if (memory.sharding() == "zero1") return Sharding::kZero1;
  return memory.sharding() == "zero2" ? Sharding::kZero2 : Sharding::kZero3;
}

// The units of each layer and of the head, made; `out` owns them.
std::vector<std::vector<ShardedUnit*>> make_units(const v1::JobSpec& spec, const Mesh& mesh,
                                                  at::Device device, ModelRole role,
                                                  TrainableModel& out) {
  const at::ScalarType compute_dtype =
      spec.model().dtype() == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const bool offload = spec.memory().offload_param_device() == "cpu";
  if (offload) out.side = make_side_stream(device);
  std::vector<std::vector<ShardedUnit*>> made;
  for (std::vector<UnitParameters>& layer : units_of(*out.model, role)) {
    made.emplace_back();
    for (UnitParameters& unit : layer) {
      const ShardedUnit::Options options{
          .dtype = unit.parameters.front()->is_quantized() ? at::kByte : compute_dtype,
          .device = device,
          .trainable = unit.trainable,
          .block = unit.block,
          .owner = role == ModelRole::kFrozen ? Owner::kReference : Owner::kParameters,
          .sharding = sharding_of(spec.memory()),
          .offload = offload,
          .side = out.side.get(),
          .replicas = mesh.replicate.size() > 1 ? &mesh.replicate : nullptr};
      out.units.push_back(std::make_unique<ShardedUnit>(
          std::move(unit.name), std::move(unit.parameters), mesh.shard, *out.reductions, options));
      made.back().push_back(out.units.back().get());
    }
  }
  return made;
}

void make_gates(const v1::JobSpec& spec, const std::vector<std::vector<ShardedUnit*>>& units,
                ModelRole role, TrainableModel& out) {
  DecoderModel& model = *out.model;
  auto& layers = model.layers();
  const size_t num_kept = std::min<size_t>(spec.memory().reshard_keeps_last(), layers.size() - 1);
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool reshard = role == ModelRole::kFrozen ||
                         (spec.memory().reshard_after_forward() && i + num_kept < layers.size());
    out.gates.push_back(std::make_unique<ShardGate>(
        units[i], ShardGate::Options{.reshard_after_forward = reshard,
                                     .needed_in_backward = i > 0,
                                     .block = block_id(prefix_of(role) + layer_name(i))}));
    layers[i] = std::make_unique<GatedLayer>(std::move(layers[i]), *out.gates.back());
  }
  // Backward begins with the head: its weights stay.
  out.gates.push_back(std::make_unique<ShardGate>(
      model.tied() ? units.front() : units.back(),
      ShardGate::Options{.reshard_after_forward = role == ModelRole::kFrozen,
                         .block = block_id(prefix_of(role) + "lm_head")}));
  model.set_head_gate(out.gates.back().get());
  for (size_t i = 0; i < out.gates.size(); ++i) {
    out.gates[i]->set_neighbours(i > 0 ? out.gates[i - 1].get() : nullptr,
                                 i + 1 < out.gates.size() ? out.gates[i + 1].get() : nullptr);
  }
}

}  // namespace

std::vector<ShardedUnit*> TrainableModel::trainable_units() const {
  std::vector<ShardedUnit*> trainable;
  for (const auto& unit : units) {
    if (unit->trainable()) trainable.push_back(unit.get());
  }
  return trainable;
}

void TrainableModel::begin_backward(bool last_of_step) { reductions->begin_backward(last_of_step); }

void TrainableModel::finish_backward() {
  for (const auto& unit : units) unit->finish_backward();
  reductions->finish();
  for (const auto& unit : units) unit->finish_step();
}

void TrainableModel::weights_changed() const {
  for (const auto& unit : units) unit->shard_changed();
}

void refuse_combinations(const v1::JobSpec& spec) {
  for (const RefusedCombination& row : kRefused) {
    if (row.applies(spec)) throw UserError(row.field, row.sentence);
  }
}

void lora_pass(const v1::JobSpec& spec, DecoderModel& model) {
  if (!spec.has_peft()) return;
  LoraOptions options = lora_of_job(spec.peft());
  if (spec::method_fields(spec.method()).disable_dropout) options.dropout = 0;
  add_adapters(model, options);
}

void quantize_pass(const v1::JobSpec& spec, DecoderModel& model) {
  quantize_matrices(model, quantization_of(spec.peft()));
}

// Blocks only: the embedding has nothing to recompute.
void recompute_pass(const v1::JobSpec& spec, DecoderModel& model) {
  const v1::Memory& memory = spec.memory();
  if (!memory.gradient_checkpointing()) return;
  const RecomputePolicy policy = memory.gradient_checkpointing_policy() == "full"
                                     ? RecomputePolicy::kFull
                                     : RecomputePolicy::kAttention;
  auto& layers = model.layers();
  const auto step = static_cast<size_t>(memory.gradient_checkpointing_every());
  for (size_t i = 1; i < layers.size(); i += step) {
    layers[i] = std::make_unique<RecomputedLayer>(std::move(layers[i]), policy);
  }
}

std::unique_ptr<DecoderModel> make_layers(const v1::JobSpec& spec, const ModelConfig& config) {
  auto model =
      std::make_unique<DecoderModel>(model_of_job(spec, config), spec.memory().head_chunk_tokens(),
                                     spec.memory().mlp_tile_tokens());
  lora_pass(spec, *model);
  quantize_pass(spec, *model);
  noise_pass(spec, *model);
  recompute_pass(spec, *model);
  return model;
}

TrainableModel shard_model(const v1::JobSpec& spec, std::unique_ptr<DecoderModel> model,
                           const Mesh& mesh, at::Device device, ModelRole role) {
  TrainableModel out;
  out.reductions = std::make_unique<ReductionQueue>();
  out.model = std::move(model);
  Collectives& world = mesh.world;
  out.model->set_router_sum([&world](at::Tensor& sums) { world.all_reduce_sum(sums); });
  if (role != ModelRole::kFrozen) offload_pass(spec, device, out);
  make_gates(spec, make_units(spec, mesh, device, role, out), role, out);
  return out;
}

TrainableModel build_model(const v1::JobSpec& spec, const ModelConfig& config, const Mesh& mesh,
                           at::Device device) {
  refuse_combinations(spec);
  return shard_model(spec, make_layers(spec, config), mesh, device);
}

std::vector<FlatLayout> trainable_layouts(DecoderModel& model, int world_size, ModelRole role) {
  std::vector<FlatLayout> layouts;
  for (const std::vector<UnitParameters>& layer : units_of(model, role)) {
    for (const UnitParameters& unit : layer) {
      if (unit.trainable) layouts.push_back(layout_of(unit.name, unit.parameters, world_size));
    }
  }
  return layouts;
}

void load_weights(const v1::JobSpec& spec, TrainableModel& trainable, const WeightFiles& weights,
                  int rank) {
  const ParameterReader reader(spec, *trainable.model, weights);
  for (const auto& unit : trainable.units) {
    for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(rank)) {
      const at::Tensor part = unit->shard().narrow(0, slice.shard_begin, slice.numel);
      const Parameter& parameter = unit->parameter_of(*slice.entry);
      if (part.is_cpu()) {
        reader.read(parameter, slice.entry_begin, part);
        continue;
      }
      const OwnerScope scope(Owner::kParameters);
      const at::Tensor staged = at::empty({slice.numel}, part.scalar_type());
      reader.read(parameter, slice.entry_begin, staged);
      part.copy_(staged);
    }
  }
  trainable.weights_changed();
}

}  // namespace tessera
