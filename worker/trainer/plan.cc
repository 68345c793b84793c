#include "worker/trainer/plan.h"

#include <ATen/ops/empty.h>

#include "worker/errors.h"
#include "worker/memory/ledger.h"
#include "worker/model/neftune.h"
#include "worker/model/stored_weights.h"
#include "worker/parallel/recompute.h"
#include "worker/trainer/model_options.h"

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
};

void noise_pass(const v1::JobSpec& spec, DecoderModel& model) {
  if (!spec.training().has_neftune_noise_alpha()) return;
  std::unique_ptr<Layer>& embedding = model.layers().front();
  embedding = make_noisy_embedding(std::move(embedding), spec.training().neftune_noise_alpha());
}

// Blocks only: the embedding has nothing to recompute.
void recompute_pass(const v1::JobSpec& spec, DecoderModel& model) {
  if (!spec.memory().gradient_checkpointing()) return;
  auto& layers = model.layers();
  for (size_t i = 1; i < layers.size(); ++i) {
    layers[i] = std::make_unique<RecomputedLayer>(std::move(layers[i]));
  }
}

std::string unit_name(size_t layer) {
  if (layer == 0) return "model.embed_tokens";
  return "model.layers." + std::to_string(layer - 1);
}

struct UnitParameters {
  std::string name;
  std::vector<Parameter*> parameters;
};

// One unit a layer and one for the head. A tied output matrix is the embedding's, so then the final
// norm goes into the embedding's unit, and the head is its second use.
std::vector<UnitParameters> units_of(DecoderModel& model) {
  std::vector<UnitParameters> units;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    units.push_back({unit_name(i), model.layers()[i]->parameters()});
  }
  if (!model.tied()) {
    units.push_back({"lm_head", model.head_parameters()});
    return units;
  }
  for (Parameter* parameter : model.head_parameters()) units[0].parameters.push_back(parameter);
  return units;
}

void shard_pass(const v1::JobSpec& spec, Collectives& group, at::Device device,
                TrainableModel& out) {
  const ShardedUnit::Options options{
      spec.model().dtype() == "bfloat16" ? at::kBFloat16 : at::kFloat, device};
  const bool reshard = spec.memory().reshard_after_forward();
  DecoderModel& model = *out.model;
  for (UnitParameters& unit : units_of(model)) {
    out.units.push_back(std::make_unique<ShardedUnit>(
        std::move(unit.name), std::move(unit.parameters), group, *out.reductions, options));
  }
  auto& layers = model.layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    out.gates.push_back(std::make_unique<ShardGate>(
        *out.units[i],
        ShardGate::Options{.reshard_after_forward = reshard, .needed_in_backward = i > 0}));
    layers[i] = std::make_unique<GatedLayer>(std::move(layers[i]), *out.gates.back());
  }
  ShardedUnit* head = (model.tied() ? out.units.front() : out.units.back()).get();
  // Backward begins with the head: its weights stay.
  out.gates.push_back(
      std::make_unique<ShardGate>(*head, ShardGate::Options{.reshard_after_forward = false}));
  model.set_head_gate(out.gates.back().get());
  for (size_t i = 0; i < out.gates.size(); ++i) {
    out.gates[i]->set_neighbours(i > 0 ? out.gates[i - 1].get() : nullptr,
                                 i + 1 < out.gates.size() ? out.gates[i + 1].get() : nullptr);
  }
}

}  // namespace

std::vector<ShardedUnit*> TrainableModel::unit_pointers() const {
  std::vector<ShardedUnit*> pointers;
  for (const auto& unit : units) pointers.push_back(unit.get());
  return pointers;
}

void TrainableModel::finish_backward() {
  for (const auto& unit : units) unit->finish_backward();
  reductions->finish();
}

void refuse_combinations(const v1::JobSpec& spec) {
  for (const RefusedCombination& row : kRefused) {
    if (row.applies(spec)) throw UserError(row.field, row.sentence);
  }
}

TrainableModel build_model(const v1::JobSpec& spec, const ModelConfig& config, Collectives& group,
                           at::Device device) {
  refuse_combinations(spec);
  TrainableModel out;
  out.reductions = std::make_unique<ReductionQueue>();
  out.model =
      std::make_unique<DecoderModel>(model_of_job(spec, config), spec.memory().head_chunk_tokens());
  out.model->set_router_sum([&group](at::Tensor& sums) { group.all_reduce_sum(sums); });
  noise_pass(spec, *out.model);
  recompute_pass(spec, *out.model);
  shard_pass(spec, group, device, out);
  return out;
}

std::vector<FlatLayout> model_layouts(DecoderModel& model, int world_size) {
  std::vector<FlatLayout> layouts;
  for (const UnitParameters& unit : units_of(model)) {
    layouts.push_back(layout_of(unit.name, unit.parameters, world_size));
  }
  return layouts;
}

void load_weights(TrainableModel& trainable, const WeightFiles& weights, int rank) {
  for (const auto& unit : trainable.units) {
    for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(rank)) {
      const at::Tensor part = unit->shard().narrow(0, slice.shard_begin, slice.numel);
      const StoredPart stored = find_stored(unit->parameter_of(*slice.entry), weights);
      const int64_t begin = stored.begin + slice.entry_begin;
      if (part.is_cpu()) {
        weights.read(stored.name, begin, part);
        continue;
      }
      const OwnerScope scope(Owner::kOther);
      const at::Tensor staged = at::empty({slice.numel}, at::kFloat);
      weights.read(stored.name, begin, staged);
      part.copy_(staged);
    }
  }
}

}  // namespace tessera
