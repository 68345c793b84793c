// The trainer's own weights while they generate: there is no second copy of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "worker/generate/merged_adapters.h"
#include "worker/parallel/shard.h"
#include "worker/parallel/shared_blocks.h"

namespace tessera {

enum class WeightMode : uint8_t {
  kGather,  // all of the model, gathered once, stays until sleep
  // Shards stay sharded: each pass gathers block by block, the next one ahead; once a host where
  // its ranks can share memory.
  kLayerwise,
};

class GenerationWeights {
 public:
  // The units, and the group that they are sharded over, must outlive it. `merged`: adapters that
  // are merged while it is awake.
  GenerationWeights(std::vector<ShardedUnit*> units, Collectives& group, WeightMode mode,
                    std::optional<MergedAdapters> merged = std::nullopt)
      : units_(std::move(units)), group_(group), mode_(mode), merged_(std::move(merged)) {}

  WeightMode mode() const { return mode_; }
  // What is held between wake() and let_go() beside the shards.
  int64_t held_bytes() const;
  // Collective over the group.
  void wake();
  // Weights may change afterwards.
  void let_go();

 private:
  std::vector<ShardedUnit*> units_;
  Collectives& group_;
  WeightMode mode_;
  std::optional<MergedAdapters> merged_;
  std::unique_ptr<SharedBlocks> blocks_;  // of kLayerwise, while awake
};

}  // namespace tessera
