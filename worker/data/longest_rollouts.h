// What the completions of a job may come to: as many rows as a run has in an epoch, of completions
// as long as may be, the longest prompts first. No order of the prompts makes a heavier microbatch.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/live_rollouts.h"

namespace tessera {

// Tokens are 0 and rewards 0, log-probabilities likewise. Not thread safe: a generation is made
// when it is asked for.
class LongestRollouts final : public RolloutDataset {
 public:
  LongestRollouts(const DatasetOptions& options, const LiveRollouts& live);
  // Of so many prompts of one length.
  LongestRollouts(const DatasetOptions& options, int64_t num_prompts, int64_t prompt_length);

 private:
  const Block& block(int64_t number) const override;

  std::vector<int64_t> prompt_lengths_, completion_lengths_;  // the longest first
  mutable int64_t made_ = -1;
  mutable Block block_;
};

}  // namespace tessera
