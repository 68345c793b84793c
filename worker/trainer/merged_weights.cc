#include "worker/trainer/merged_weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker/model/quantized.h"

namespace tessera {
namespace {

at::Tensor wide(const at::Tensor& x) { return x.detach().to(at::kFloat); }

at::Tensor base_rows(const Parameter& weight, int64_t first, int64_t count) {
  if (weight.is_quantized()) return dequantized_rows(weight, first, count, at::kFloat);
  return wide(weight.value.narrow(0, first, count));
}

// Rows [first, first + count) of a merged matrix.
at::Tensor merged_rows(const Linear& linear, int64_t first, int64_t count) {
  const LoraAdapter& lora = *linear.adapter;
  const auto rows = [&](const Parameter& p) { return wide(p.value.narrow(0, first, count)); };
  at::Tensor merged = base_rows(linear.weight, first, count)
                          .add(at::mm(rows(lora.b), wide(lora.a.value)), lora.scale);
  if (!lora.has_magnitude()) return merged;
  const at::Tensor norms = at::linalg_vector_norm(merged, 2, at::OptionalIntArrayRef(1));
  return merged.mul_((rows(lora.magnitude) / norms).unsqueeze(1));
}

}  // namespace

MergedWeights::MergedWeights(TrainableModel& trainable, const Collectives& group)
    : rank_(group.rank()) {
  std::map<const Parameter*, ShardedUnit*> unit_of;
  for (const auto& unit : trainable.units) {
    for (const FlatEntry& entry : unit->layout().entries)
      unit_of[&unit->parameter_of(entry)] = unit.get();
  }
  const auto add = [&](const std::vector<Parameter*>& parameters,
                       const std::vector<Linear*>& linears) {
    Layer next;
    std::vector<std::pair<std::string, std::vector<int64_t>>> kept;
    for (Parameter* parameter : parameters) {
      ShardedUnit* unit = unit_of.at(parameter);
      if (std::ranges::find(next.units, unit) == next.units.end()) next.units.push_back(unit);
      if (parameter->fresh != Fresh::kNo && parameter->fresh != Fresh::kNormal) continue;
      kept.emplace_back(parameter->name, parameter->shape);
      next.parameters[parameter->name] = parameter;
    }
    for (const Linear* linear : linears) {
      if (linear->adapter) next.adapted[linear->weight.name] = linear;
    }
    layouts_.push_back(make_flat_layout(/*name=*/"", kept, group.size()));
    layers_.push_back(std::move(next));
  };
  for (const auto& layer : trainable.model->layers()) add(layer->parameters(), layer->linears());
  add(trainable.model->head_parameters(), {});
}

MergedWeights::~MergedWeights() { leave(); }

void MergedWeights::leave() {
  if (entered_ == nullptr) return;
  for (ShardedUnit* unit : entered_->units) unit->release();
  entered_ = nullptr;
}

void MergedWeights::enter(size_t layout) {
  leave();
  entered_ = &layers_[layout];
  layout_ = &layouts_[layout];
  for (ShardedUnit* unit : entered_->units) unit->gather();
}

at::Tensor MergedWeights::read(int64_t begin, int64_t numel) const {
  const at::Tensor out = at::zeros({numel}, at::kFloat);
  for (const FlatLayout::Slice& slice : layout_->slices_of_rank(rank_)) {
    const int64_t from = std::max(begin, slice.shard_begin);
    const int64_t to = std::min(begin + numel, slice.shard_begin + slice.numel);
    if (from >= to) continue;
    out.narrow(0, from - begin, to - from)
        .copy_(values(*slice.entry, slice.entry_begin + from - slice.shard_begin, to - from));
  }
  return out;
}

at::Tensor MergedWeights::values(const FlatEntry& entry, int64_t begin, int64_t numel) const {
  const c10::NoGradGuard no_grad;
  const Parameter& parameter = *entered_->parameters.at(entry.name);
  const auto adapted = entered_->adapted.find(entry.name);
  const bool is_adapted = adapted != entered_->adapted.end();
  if (!is_adapted && !parameter.is_quantized())
    return wide(parameter.value.view({-1}).narrow(0, begin, numel));
  const int64_t width = entry.shape[1], first = begin / width;
  const int64_t count = (begin + numel + width - 1) / width - first;
  const at::Tensor rows =
      is_adapted ? merged_rows(*adapted->second, first, count) : base_rows(parameter, first, count);
  return rows.reshape({-1}).narrow(0, begin - first * width, numel);
}

}  // namespace tessera
