#include "worker/trainer/merged_weights.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker/model/merged_rows.h"

namespace tessera {
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
    return parameter.value.detach().view({-1}).narrow(0, begin, numel).to(at::kFloat);
  const int64_t width = entry.shape[1], first = begin / width;
  const int64_t count = (begin + numel + width - 1) / width - first;
  const at::Tensor rows =
      is_adapted ? merged_rows(*adapted->second, first, count) : wide_rows(parameter, first, count);
  return rows.reshape({-1}).narrow(0, begin - first * width, numel);
}

}  // namespace tessera
