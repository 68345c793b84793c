// Completions that files hold. What is left of the records after the last whole generation is not
// used, as TRL's sampler has it; a single pass over rows that are not compared uses all of them.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/rollout_dataset.h"

namespace tessera {

class RecordedRollouts final : public RolloutDataset {
 public:
  // Throws UserError: fewer rollouts than are made at once, no rewards where they are needed, and
  // as RolloutDataset does.
  RecordedRollouts(const DatasetOptions& options, Rollouts rollouts);

 private:
  const Block& block(int64_t number) const override { return blocks_[number]; }

  std::vector<Block> blocks_;
};

}  // namespace tessera
