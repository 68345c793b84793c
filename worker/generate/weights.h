// The trainer's own weights while they generate: there is no second copy of them.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/parallel/shard.h"

namespace tessera {

enum class WeightMode : uint8_t {
  kGather,     // all of the model, gathered once, stays until sleep
  kLayerwise,  // shards stay sharded: each pass gathers block by block, the next one ahead
};

class GenerationWeights {
 public:
  // The units must outlive it.
  GenerationWeights(std::vector<ShardedUnit*> units, WeightMode mode)
      : units_(std::move(units)), mode_(mode) {}

  WeightMode mode() const { return mode_; }
  // What is held between wake() and let_go() beside the shards.
  int64_t held_bytes() const;
  // Collective with kGather, over the group that the weights are sharded over.
  void wake();
  // Weights may change afterwards.
  void let_go();

 private:
  std::vector<ShardedUnit*> units_;
  WeightMode mode_;
};

}  // namespace tessera
