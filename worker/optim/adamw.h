// AdamW over sharded units: each rank updates the part of the weights it owns, in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "worker/checkpoint/checkpoint.h"
#include "worker/parallel/shard.h"

namespace tessera {

class AdamW {
 public:
  struct Options {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double weight_decay = 0;
  };
  // The units must outlive the optimizer.
  AdamW(const std::vector<ShardedUnit*>& units, const Options& options, int rank);

  // One update from the units' gradients, scaled by `gradient_scale` first.
  void step(double learning_rate, double gradient_scale);

  // Its state as flat vectors beside the weights, for checkpoints.
  std::vector<FlatShard> state() const;
  // Steps taken; set when a checkpoint is loaded.
  void set_step(int64_t step);

 private:
  // A run of a shard whose elements are updated alike.
  struct Segment {
    int64_t begin;
    int64_t numel;
    bool decays;
  };
  struct UnitState {
    ShardedUnit* unit;
    std::vector<Segment> segments;
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
  };

  void update_by_kernel(const UnitState& state, const at::Tensor& gradient, double learning_rate,
                        double gradient_scale);
  void update_by_aten(const UnitState& state, const at::Tensor& gradient, double learning_rate,
                      double gradient_scale);

  Options options_;
  std::vector<UnitState> units_;
  at::Tensor step_;  // float32 scalar
};

}  // namespace tessera
