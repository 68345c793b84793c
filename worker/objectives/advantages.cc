#include "worker/objectives/advantages.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// Added to deviations, as in TRL.
constexpr double kLeastDeviation = 1e-4;
// A deviation below counts as none.
constexpr double kNoDeviation = 1e-8;

int64_t count_of(std::span<const double> values) {
  return std::ranges::count_if(values, [](double value) { return !std::isnan(value); });
}

std::vector<std::vector<double>> in_groups(std::span<const double> values,
                                           std::span<const int32_t> groups, int64_t num_groups) {
  std::vector<std::vector<double>> members(static_cast<size_t>(num_groups));
  for (size_t i = 0; i < values.size(); ++i) members[groups[i]].push_back(values[i]);
  return members;
}

void clear_nan(std::vector<double>& values) {
  for (double& value : values) value = std::isnan(value) ? 0 : value;
}

// To mean 0 and deviation 1.
void normalize(std::vector<double>& values) {
  const double mean = mean_of(values), deviation = deviation_of(values) + kLeastDeviation;
  for (double& value : values) value = (value - mean) / deviation;
}

double share_of_zeros(std::span<const double> deviations) {
  const auto zeros = std::ranges::count_if(
      deviations, [](double deviation) { return std::abs(deviation) <= kNoDeviation; });
  return static_cast<double>(zeros) / static_cast<double>(std::ssize(deviations));
}

std::vector<double> deviations_of(const std::vector<std::vector<double>>& groups) {
  std::vector<double> deviations;
  for (const auto& group : groups) deviations.push_back(deviation_of(group));
  return deviations;
}

struct Lengths {
  double mean = 0, min = 0, max = 0;
};

Lengths summarize(const std::vector<double>& lengths) {
  if (lengths.empty()) return {};
  return {mean_of(lengths), std::ranges::min(lengths), std::ranges::max(lengths)};
}

}  // namespace

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += std::isnan(value) ? 0 : value;
  const auto count = static_cast<double>(count_of(values));
  return count > 0 ? sum / count : kNan;
}

double deviation_of(std::span<const double> values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) {
    if (!std::isnan(value)) sum += (value - mean) * (value - mean);
  }
  const auto count = static_cast<double>(count_of(values));
  return count > 1 ? std::sqrt(sum / (count - 1)) : kNan;
}

Advantages compare_in_groups(std::span<const double> rewards_N, std::span<const int32_t> groups_N,
                             int64_t num_groups, RewardScale scale) {
  const auto groups = in_groups(rewards_N, groups_N, num_groups);
  std::vector<double> deviations = deviations_of(groups);
  if (scale == RewardScale::kBatch) std::ranges::fill(deviations, deviation_of(rewards_N));
  Advantages out{.share_without_deviation = share_of_zeros(deviations)};
  for (size_t i = 0; i < rewards_N.size(); ++i) {
    const double ahead = rewards_N[i] - mean_of(groups[groups_N[i]]);
    out.of_rollouts.push_back(
        scale == RewardScale::kNone ? ahead : ahead / (deviations[groups_N[i]] + kLeastDeviation));
  }
  clear_nan(out.of_rollouts);
  return out;
}

Advantages compare_each_in_groups(const Generation& generation, std::span<const double> weights) {
  const auto size = static_cast<size_t>(generation.size());
  std::vector<double> sums(size, kNan);
  for (size_t k = 0; k < generation.rollouts.front().rewards.size(); ++k) {
    std::vector<double> rewards;
    for (const Rollout& rollout : generation.rollouts) rewards.push_back(rollout.rewards[k]);
    const auto groups = in_groups(rewards, generation.groups, generation.num_groups);
    for (size_t i = 0; i < size; ++i) {
      const auto& group = groups[generation.groups[i]];
      const double ahead = (rewards[i] - mean_of(group)) / (deviation_of(group) + kLeastDeviation);
      // What judges nothing of a completion adds nothing; what judges it alone, neither.
      if (std::isnan(rewards[i])) continue;
      const double term = std::isnan(ahead) ? 0 : ahead * (weights.empty() ? 1 : weights[k]);
      sums[i] = (std::isnan(sums[i]) ? 0 : sums[i]) + term;
    }
  }
  const double deviation = deviation_of(sums);
  Advantages out{.of_rollouts = std::move(sums),
                 .share_without_deviation = share_of_zeros(std::span(&deviation, 1))};
  normalize(out.of_rollouts);
  clear_nan(out.of_rollouts);
  return out;
}

Advantages compare_with_others(std::span<const double> rewards_N, std::span<const double> costs_N,
                               std::span<const int32_t> groups_N, int64_t num_groups,
                               const LeaveOneOutOptions& options) {
  std::vector<double> rewards(rewards_N.begin(), rewards_N.end());
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (!options.clip_range.empty() && !std::isnan(rewards[i]))
      rewards[i] = std::clamp(rewards[i], options.clip_range[0], options.clip_range[1]);
    if (!costs_N.empty()) rewards[i] -= costs_N[i];
  }
  const auto groups = in_groups(rewards, groups_N, num_groups);
  Advantages out{.share_without_deviation = share_of_zeros(deviations_of(groups))};
  for (size_t i = 0; i < rewards.size(); ++i) {
    const auto& group = groups[groups_N[i]];
    const auto count = static_cast<double>(count_of(group));
    const double others = (mean_of(group) * count - rewards[i]) / (count - 1);
    out.of_rollouts.push_back(count > 1 ? rewards[i] - others : kNan);
  }
  if (options.normalize) normalize(out.of_rollouts);
  clear_nan(out.of_rollouts);
  return out;
}

std::vector<std::pair<std::string, double>> measure_generation(const RolloutDataset& rollouts,
                                                               const Generation& generation,
                                                               const Advantages& advantages) {
  std::vector<double> lengths, ended, rewards;
  for (const Rollout& rollout : generation.rollouts) {
    const auto outside = std::ranges::count(rollout.mask, 0);
    lengths.push_back(static_cast<double>(std::ssize(rollout.completion) - outside));
    if (!rollout.truncated) ended.push_back(lengths.back());
    rewards.push_back(rollouts.reward(rollout));
  }
  const Lengths of_all = summarize(lengths), of_ended = summarize(ended);
  const auto size = static_cast<double>(generation.size());
  std::vector<std::pair<std::string, double>> metrics{
      {"completions/mean_length", of_all.mean},
      {"completions/min_length", of_all.min},
      {"completions/max_length", of_all.max},
      {"completions/clipped_ratio", 1 - static_cast<double>(std::ssize(ended)) / size},
      {"completions/mean_terminated_length", of_ended.mean},
      {"completions/min_terminated_length", of_ended.min},
      {"completions/max_terminated_length", of_ended.max},
      {"reward", mean_of(rewards)},
      {"reward_std", deviation_of(rewards)},
      {"frac_reward_zero_std", advantages.share_without_deviation}};
  for (size_t k = 0; k < rollouts.reward_names().size(); ++k) {
    std::vector<double> values;
    for (const Rollout& rollout : generation.rollouts) values.push_back(rollout.rewards[k]);
    const std::string name = "rewards/" + rollouts.reward_names()[k];
    metrics.emplace_back(name + "/mean", mean_of(values));
    metrics.emplace_back(name + "/std", deviation_of(values));
  }
  return metrics;
}

}  // namespace tessera
