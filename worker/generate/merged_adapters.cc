#include "worker/generate/merged_adapters.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "worker/memory/host_memory.h"
#include "worker/memory/ledger.h"
#include "worker/model/merged_rows.h"

namespace tessera {
namespace {

// Elements of a matrix that are merged at a time, in rows: 16 MiB in float32.
constexpr int64_t kMergedElements = int64_t{1} << 22;

}  // namespace

MergedAdapters::MergedAdapters(DecoderModel& model, const std::vector<ShardedUnit*>& units,
                               int rank) {
  std::map<const Parameter*, ShardedUnit*> unit_of;
  for (ShardedUnit* unit : units) {
    for (const FlatEntry& entry : unit->layout().entries)
      unit_of[&unit->parameter_of(entry)] = unit;
  }
  for (const auto& layer : model.layers()) {
    std::map<const Parameter*, const Linear*> adapted;
    for (const Linear* linear : layer->linears()) {
      if (!linear->adapter) continue;
      TORCH_CHECK(!linear->weight.is_quantized(), linear->name(), " is quantized");
      adapted[&linear->weight] = linear;
    }
    if (adapted.empty()) continue;
    AdaptedLayer& next = layers_.emplace_back();
    for (const Parameter* parameter : layer->parameters()) {
      ShardedUnit* unit = unit_of.at(parameter);
      if (std::ranges::find(next.units, unit) == next.units.end()) next.units.push_back(unit);
    }
    for (ShardedUnit* unit : next.units) {
      for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(rank)) {
        const auto found = adapted.find(&unit->parameter_of(*slice.entry));
        if (found == adapted.end()) continue;
        next.parts.push_back(
            {found->second, unit, slice.entry_begin, slice.shard_begin, slice.numel});
      }
    }
  }
}

void MergedAdapters::keep(Part& part) {
  const BlockScope block(part.unit->block());
  const OwnerScope owner(Owner::kParameters);
  const at::Tensor shard = part.in_shard();
  const ShardedUnit::Options& options = part.unit->options();
  part.kept = options.offload ? empty_host(shard.sizes(), shard.scalar_type(), options.device)
                              : at::empty(shard.sizes(), shard.options());
  part.kept.copy_(shard);
}

// By whole rows, of which the first and the last may be another rank's in part.
void MergedAdapters::write_merged(const Part& part) {
  const int64_t width = part.linear->weight.shape[1];
  const int64_t end = part.begin + part.numel, rows = std::max<int64_t>(1, kMergedElements / width);
  const at::Tensor shard = part.in_shard();
  for (int64_t at = part.begin; at < end;) {
    const int64_t first = at / width;
    const int64_t last = std::min(first + rows, (end + width - 1) / width);
    const int64_t count = std::min(last * width, end) - at;
    const at::Tensor merged = merged_rows(*part.linear, first, last - first).view({-1});
    shard.narrow(0, at - part.begin, count).copy_(merged.narrow(0, at - first * width, count));
    at += count;
  }
}

void MergedAdapters::merge() {
  const c10::NoGradGuard no_grad;
  for (AdaptedLayer& layer : layers_) {
    const BlockScope block(layer.units.front()->block());
    for (ShardedUnit* unit : layer.units) unit->gather();
    for (Part& part : layer.parts) {
      keep(part);
      const OwnerScope owner(Owner::kActivations);
      write_merged(part);
    }
    for (ShardedUnit* unit : layer.units) unit->release();
  }
  tell_of_change();
}

void MergedAdapters::restore() {
  const c10::NoGradGuard no_grad;
  for (AdaptedLayer& layer : layers_) {
    for (Part& part : layer.parts) {
      if (!part.kept.defined()) return;
      part.in_shard().copy_(part.kept);
      part.kept.reset();
    }
  }
  tell_of_change();
}

// On every rank, also where no part is its own: others' are gathered, too.
void MergedAdapters::tell_of_change() const {
  for (const AdaptedLayer& layer : layers_) {
    for (ShardedUnit* unit : layer.units) {
      if (!unit->trainable()) unit->shard_changed();
    }
  }
}

int64_t MergedAdapters::kept_bytes() const {
  int64_t bytes = 0;
  for (const AdaptedLayer& layer : layers_) {
    for (const Part& part : layer.parts)
      bytes += part.numel * static_cast<int64_t>(part.unit->shard().element_size());
  }
  return bytes;
}

}  // namespace tessera
