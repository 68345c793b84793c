// The models that a job trains. They share the optimizer, the norm of the gradients, and
// checkpoints.
#pragma once

#include <vector>

#include "worker/trainer/plan.h"

namespace tessera {

// All outlive this.
struct TrainedModels {
  // A job that trains its policy alone is written as that.
  TrainedModels(TrainableModel& policy,  // NOLINT(google-explicit-constructor)
                TrainableModel* value = nullptr)
      : policy(policy), value(value) {}

  TrainableModel& policy;
  TrainableModel* value;  // the value model; null: there is none

  // What gradients, the optimizer and checkpoints are of: the policy's, then the value model's.
  std::vector<ShardedUnit*> units() const {
    std::vector<ShardedUnit*> units = policy.trainable_units();
    if (value == nullptr) return units;
    const std::vector<ShardedUnit*> others = value->trainable_units();
    units.insert(units.end(), others.begin(), others.end());
    return units;
  }
  // Call after writing units' shards.
  void weights_changed() const {
    policy.weights_changed();
    if (value != nullptr) value->weights_changed();
  }
};

}  // namespace tessera
