// How good completions are against those of the same prompt. Sources: the advantages of
// trl/trainer/grpo_trainer.py and rloo_trainer.py.
//
// A reward that is NaN does not judge its completion; one that nothing judges has advantage 0 and
// does not count for the others.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/data/rollout_dataset.h"

namespace tessera {

// Of the values that are not NaN; NaN where there are none.
double mean_of(std::span<const double> values);
// The deviation of a sample; NaN of a single value.
double deviation_of(std::span<const double> values);

// What advantages are divided by, and 1e-4 more.
enum class RewardScale : uint8_t { kNone, kGroup, kBatch };

struct Advantages {
  std::vector<double> of_rollouts;
  double share_without_deviation = 0;  // of rewards (kBatch: all, or none; else of a group's)
};

// rewards_N and the groups_N of `num_groups` (each from 0): a reward less the mean of its group,
// over the deviation.
Advantages compare_in_groups(std::span<const double> rewards_N, std::span<const int32_t> groups_N,
                             int64_t num_groups, RewardScale scale);

// Each reward is compared in its group by itself; then they are summed, each times its weight
// (`weights` empty: 1), and brought to mean 0 and deviation 1 over all.
Advantages compare_each_in_groups(const Generation& generation, std::span<const double> weights);

struct LeaveOneOutOptions {
  std::span<const double> clip_range;  // two bounds, or none
  bool normalize = false;              // to mean 0 and deviation 1 over all
};
// Rewards, clipped, less the cost of each; of that less the mean of the others of the group.
// `costs_N` may be empty.
Advantages compare_with_others(std::span<const double> rewards_N, std::span<const double> costs_N,
                               std::span<const int32_t> groups_N, int64_t num_groups,
                               const LeaveOneOutOptions& options);

// What TRL logs of a generation: how long its completions are, and how they were judged.
std::vector<std::pair<std::string, double>> measure_generation(const RolloutDataset& rollouts,
                                                               const Generation& generation,
                                                               const Advantages& advantages);

}  // namespace tessera
