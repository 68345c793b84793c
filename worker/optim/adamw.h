// AdamW over sharded units: each rank updates the part of the weights it owns, in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "worker/checkpoint/checkpoint.h"
#include "worker/memory/side_stream.h"
#include "worker/optim/adamw_state.h"
#include "worker/parallel/shard.h"

namespace tessera {

class AdamW {
 public:
  struct Options {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double weight_decay = 0;
    // With state.offload, the update is computed by the CPU.
    AdamWState::Options state = {};
  };
  // The units are trainable, at least one, and must outlive the optimizer.
  AdamW(const std::vector<ShardedUnit*>& units, const Options& options, int rank);

  // One update from the units' gradients, scaled by `gradient_scale` first.
  void step(double learning_rate, double gradient_scale);
  // The same, unit by unit: begin_step() once, then each unit that has a gradient.
  void begin_step() { ++step_; }
  void update(ShardedUnit& unit, double learning_rate, double gradient_scale);

  // Its state as flat vectors beside the weights, for checkpoints.
  std::vector<FlatShard> state() const;
  // Steps taken; set when a checkpoint is loaded.
  void set_step(int64_t step) { step_ = step; }

 private:
  struct UnitState {
    ShardedUnit* unit;
    AdamWState state;
  };
  // A unit's weights and gradient where its state lies.
  struct Staged {
    at::Tensor weights, gradient;
  };

  void update(std::span<UnitState> units, double learning_rate, double gradient_scale);
  bool moves_weights(const ShardedUnit& unit) const;
  Staged fetch(const ShardedUnit& unit) const;
  void wait_for_fetched() const;
  void put_back(const ShardedUnit& unit, const Staged& staged) const;

  Options options_;
  std::vector<UnitState> units_;
  std::unique_ptr<SideStream> side_;  // between device and host
  Staged written_back_;               // lives until the copies from it are done
  int64_t step_ = 0;
};

}  // namespace tessera
