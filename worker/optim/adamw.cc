#include "worker/optim/adamw.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "worker/memory/host_memory.h"
#include "worker/memory/ledger.h"

namespace tessera {

AdamW::AdamW(const std::vector<ShardedUnit*>& units, const Options& options, int rank)
    : options_(options), side_(make_side_stream(units.front()->options().device)) {
  for (ShardedUnit* unit : units) {
    const BlockScope block(unit->block());
    units_.push_back({unit, AdamWState(*unit, rank, options_.state)});
  }
}

void AdamW::step(double learning_rate, double gradient_scale) {
  begin_step();
  update(units_, learning_rate, gradient_scale);
}

void AdamW::update(ShardedUnit& unit, double learning_rate, double gradient_scale) {
  const auto found = std::ranges::find(units_, &unit, &UnitState::unit);
  TORCH_CHECK(found != units_.end(), unit.layout().name, " is not of this optimizer");
  update(std::span(&*found, 1), learning_rate, gradient_scale);
}

// While the CPU or the device computes one unit's update, the next one's tensors are on their way.
void AdamW::update(std::span<UnitState> units, double learning_rate, double gradient_scale) {
  const OwnerScope scope(Owner::kOptimizer);
  const c10::AutoGradMode no_grad(false);
  std::vector<UnitState*> due;
  for (UnitState& state : units) {
    if (state.unit->gradient().defined()) due.push_back(&state);
  }
  Staged next;
  if (!due.empty()) next = fetch(*due.front()->unit);
  for (size_t i = 0; i < due.size(); ++i) {
    wait_for_fetched();
    const Staged staged = std::exchange(next, {});
    if (i + 1 < due.size()) next = fetch(*due[i + 1]->unit);
    ShardedUnit& unit = *due[i]->unit;
    due[i]->state.update(staged.weights, staged.gradient,
                         {.step = step_,
                          .learning_rate = learning_rate,
                          .gradient_scale = gradient_scale,
                          .beta1 = options_.beta1,
                          .beta2 = options_.beta2,
                          .epsilon = options_.epsilon,
                          .weight_decay = options_.weight_decay});
    put_back(unit, staged);
    written_back_ = staged;
    unit.shard_changed();
  }
  // Whoever reads the shards next may be the CPU.
  side_->finish();
  side_->join();
  written_back_ = {};
}

bool AdamW::moves_weights(const ShardedUnit& unit) const {
  return unit.options().offload != options_.state.offload;
}

AdamW::Staged AdamW::fetch(const ShardedUnit& unit) const {
  const at::Device device = unit.options().device;
  const BlockScope block(unit.block());
  Staged staged{unit.shard(), unit.gradient()};
  const auto make = [&](const at::Tensor& like) {
    if (options_.state.offload) return empty_host(like.sizes(), at::kFloat, device);
    return at::empty(like.sizes(), at::TensorOptions(device).dtype(at::kFloat));
  };
  if (options_.state.offload) staged.gradient = make(unit.gradient());
  if (moves_weights(unit)) staged.weights = make(unit.shard());
  if (!options_.state.offload && !moves_weights(unit)) return staged;
  side_->run([&] {
    if (options_.state.offload) copy_across(staged.gradient, unit.gradient());
    if (moves_weights(unit)) copy_across(staged.weights, unit.shard());
  });
  return staged;
}

void AdamW::wait_for_fetched() const {
  if (options_.state.offload) {
    side_->finish();
  } else {
    side_->join();
  }
}

void AdamW::put_back(const ShardedUnit& unit, const Staged& staged) const {
  if (!moves_weights(unit)) return;
  side_->run([&] { copy_across(unit.shard(), staged.weights); });
}

std::vector<FlatShard> AdamW::state() const {
  std::vector<FlatShard> shards;
  for (const UnitState& state : units_) {
    for (FlatShard& shard : state.state.vectors()) shards.push_back(std::move(shard));
  }
  return shards;
}

}  // namespace tessera
