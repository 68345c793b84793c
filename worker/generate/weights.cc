#include "worker/generate/weights.h"

#include <algorithm>
#include <chrono>
#include <map>

namespace tessera {
namespace {

// For ranks between two blocks of one pass.
constexpr std::chrono::minutes kTimeout{10};

// The most that is gathered for one use.
int64_t largest_block_bytes(const std::vector<ShardedUnit*>& units) {
  std::map<BlockId, int64_t> blocks;
  int64_t largest = 0;
  for (const ShardedUnit* unit : units) {
    int64_t& bytes = blocks[unit->block()];
    bytes += unit->gathered_bytes();
    largest = std::max(largest, bytes);
  }
  return largest;
}

}  // namespace

int64_t GenerationWeights::held_bytes() const {
  int64_t bytes = merged_ ? merged_->kept_bytes() : 0;
  if (mode_ == WeightMode::kLayerwise) return bytes;
  for (const ShardedUnit* unit : units_) bytes += unit->gathered_bytes();
  return bytes;
}

void GenerationWeights::wake() {
  if (merged_) merged_->merge();
  if (mode_ == WeightMode::kLayerwise) {
    const at::Device device = units_.front()->options().device;
    blocks_ = SharedBlocks::open(group_, device, largest_block_bytes(units_), kTimeout);
    for (ShardedUnit* unit : units_) unit->share_gathered(blocks_.get());
    return;
  }
  for (ShardedUnit* unit : units_) {
    unit->hold();
    unit->gather();
  }
}

void GenerationWeights::let_go() {
  for (ShardedUnit* unit : units_) {
    if (mode_ == WeightMode::kLayerwise) unit->share_gathered(nullptr);
    unit->let_go();
  }
  blocks_.reset();
  if (merged_) merged_->restore();
}

}  // namespace tessera
