#include "worker/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "worker/kernels/stand_in.h"
#include "worker/kernels/tensor_ops.h"
#include "worker/memory/ledger.h"

namespace tessera {

AdamW::AdamW(const std::vector<ShardedUnit*>& units, const Options& options, int rank)
    : options_(options) {
  const OwnerScope scope(Owner::kOptimizer);
  step_ = at::zeros({}, units.front()->shard().options());
  for (ShardedUnit* unit : units) {
    const BlockScope block(unit->block());
    UnitState state{unit, {}, at::zeros_like(unit->shard()), at::zeros_like(unit->shard())};
    const FlatLayout& layout = unit->layout();
    for (const FlatLayout::Slice& slice : layout.slices_of_rank(rank)) {
      const bool decays = unit->decays(slice.entry - layout.entries.data());
      state.segments.push_back({slice.shard_begin, slice.numel, decays});
    }
    units_.push_back(std::move(state));
  }
}

void AdamW::step(double learning_rate, double gradient_scale) {
  const OwnerScope scope(Owner::kOptimizer);
  step_.add_(1);
  for (const UnitState& state : units_) {
    const at::Tensor gradient = state.unit->gradient();
    if (!gradient.defined()) continue;
    if (has_cpu_kernels(gradient)) {
      update_by_kernel(state, gradient, learning_rate, gradient_scale);
    } else {
      update_by_aten(state, gradient, learning_rate, gradient_scale);
    }
  }
}

void AdamW::update_by_kernel(const UnitState& state, const at::Tensor& gradient,
                             double learning_rate, double gradient_scale) {
  const double step = host_value(step_, /*without=*/1);
  const double rate = learning_rate / (1 - std::pow(options_.beta1, step));
  for (const Segment& segment : state.segments) {
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, segment.begin, segment.numel);
    };
    const double decay = segment.decays ? options_.weight_decay : 0.0;
    adamw_(part(state.unit->shard()), part(state.exp_avg), part(state.exp_avg_sq), part(gradient),
           {.gradient_scale = static_cast<float>(gradient_scale),
            .decay = static_cast<float>(1 - learning_rate * decay),
            .keep1 = static_cast<float>(1 - options_.beta1),
            .keep2 = static_cast<float>(1 - options_.beta2),
            .step_size = static_cast<float>(rate),
            .root_correction = static_cast<float>(std::sqrt(1 - std::pow(options_.beta2, step))),
            .epsilon = static_cast<float>(options_.epsilon)});
  }
}

void AdamW::update_by_aten(const UnitState& state, const at::Tensor& gradient, double learning_rate,
                           double gradient_scale) {
  if (gradient_scale != 1.0) gradient.mul_(gradient_scale);
  for (const bool decays : {true, false}) {
    std::vector<at::Tensor> weights, gradients, exp_avgs, exp_avg_sqs, steps;
    for (const Segment& segment : state.segments) {
      if (segment.decays != decays) continue;
      const auto part = [&](const at::Tensor& flat) {
        return flat.narrow(0, segment.begin, segment.numel);
      };
      weights.push_back(part(state.unit->shard()));
      gradients.push_back(part(gradient));
      exp_avgs.push_back(part(state.exp_avg));
      exp_avg_sqs.push_back(part(state.exp_avg_sq));
      steps.push_back(step_);
    }
    if (weights.empty()) continue;
    at::_fused_adamw_(weights, gradients, exp_avgs, exp_avg_sqs, {}, steps, learning_rate,
                      options_.beta1, options_.beta2, decays ? options_.weight_decay : 0.0,
                      options_.epsilon,
                      /*amsgrad=*/false, /*maximize=*/false);
  }
}

std::vector<FlatShard> AdamW::state() const {
  std::vector<FlatShard> shards;
  for (const UnitState& state : units_) {
    const std::string& name = state.unit->layout().name;
    shards.push_back({name + "/exp_avg", state.exp_avg, state.unit->layout().used_numel});
    shards.push_back({name + "/exp_avg_sq", state.exp_avg_sq, state.unit->layout().used_numel});
  }
  return shards;
}

void AdamW::set_step(int64_t step) { step_.fill_(static_cast<double>(step)); }

}  // namespace tessera
