// What completions count for, that were sampled with other probabilities than the policy gives
// them. Source: the importance sampling correction of trl/trainer/grpo_trainer.py.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/data/rollout_dataset.h"

namespace tessera {

struct ImportanceOptions {
  bool by_sequence = true;  // a completion has one ratio, the product of its tokens'
  bool masks = true;        // ratios out of bounds become 0, else the bound
  double least = 0, most = 0;
};

struct ImportanceWeights {
  std::vector<float> of_labels;  // of a completion's ratio: that, for each of its labels
  std::vector<std::pair<std::string, double>> metrics;  // by TRL's names
};

// `old` and `sampling` are log-probabilities of each label of the generation. Where the latter is
// NaN, the ratio is 1.
ImportanceWeights weigh_samples(const Generation& generation, std::span<const float> old,
                                std::span<const float> sampling, const ImportanceOptions& options);

}  // namespace tessera
