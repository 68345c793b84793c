// What each token of a completion was worth, and how much better than a value model expected:
// PPO's rewards and generalised advantage estimation (arXiv 1506.02438). Source: PPOTrainer.train
// in trl/experimental/ppo/ppo_trainer.py of TRL 1.12.
//
// A completion's steps are its labels. Where it has fewer than the longest one of its generation,
// there is one more: its end, of which the value model has a value, too. The last step is rewarded
// with the completion's score.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/objectives/online.h"

namespace tessera {

struct TokenRewardOptions {
  double kl_coef = 0;           // what the divergence from the reference costs
  bool k3 = false;              // its estimator; else k1
  bool whiten_rewards = false;  // to deviation 1 over all steps
  double gamma = 1;             // discount of later rewards
  double lam = 1;               // that of later surprises
};

struct TokenAdvantages {
  std::vector<float> advantages;   // of each label; mean 0 and deviation 1 over all of them
  std::vector<float> returns;      // of each label: what its value should have been
  std::vector<float> end_returns;  // of each completion: that of its end; NaN: it is no step
  // Means over completions, of sums over their labels.
  double mean_kl = 0, mean_entropy = 0;
};

// Labels of the longest completion.
int64_t longest_labels(const Generation& generation);

// `scores_N`: what each completion is worth. `known` holds all that GenerationScores may.
TokenAdvantages estimate_advantages(const Generation& generation, std::span<const double> scores_N,
                                    const GenerationScores& known,
                                    const TokenRewardOptions& options);

// To deviation 1, and where `shifts` to mean 0; of one value nothing is known.
void whiten(std::span<double> values, bool shifts);

}  // namespace tessera
