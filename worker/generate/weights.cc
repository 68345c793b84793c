#include "worker/generate/weights.h"

namespace tessera {

int64_t GenerationWeights::held_bytes() const {
  int64_t bytes = 0;
  if (mode_ == WeightMode::kLayerwise) return bytes;
  for (const ShardedUnit* unit : units_) bytes += unit->gathered_bytes();
  return bytes;
}

void GenerationWeights::wake() {
  if (mode_ == WeightMode::kLayerwise) return;
  for (ShardedUnit* unit : units_) {
    unit->hold();
    unit->gather();
  }
}

void GenerationWeights::let_go() {
  for (ShardedUnit* unit : units_) unit->let_go();
}

}  // namespace tessera
