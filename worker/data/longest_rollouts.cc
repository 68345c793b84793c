#include "worker/data/longest_rollouts.h"

#include <algorithm>
#include <functional>
#include <string>

namespace tessera {

LongestRollouts::LongestRollouts(const DatasetOptions& options, int64_t num_prompts,
                                 int64_t prompt_length)
    : RolloutDataset(options, {options.rollouts->reward_names, options.rollouts->has_logprobs}),
      prompt_lengths_(static_cast<size_t>(num_prompts), prompt_length),
      completion_lengths_(static_cast<size_t>(num_prompts),
                          options.rollouts->max_completion_length) {
  set_num_rows(num_prompts * options.rollouts->num_generations);
}

LongestRollouts::LongestRollouts(const DatasetOptions& options, const LiveRollouts& live)
    : RolloutDataset(options, {live.reward_names(), live.has_logprobs()}) {
  // The data's own completions may be longer than those that are made.
  for (int64_t i = 0; i < live.prompts().size(); ++i) {
    prompt_lengths_.push_back(live.prompt_tokens(i));
    completion_lengths_.push_back(
        std::max(options.rollouts->max_completion_length, live.completion_tokens(i)));
  }
  std::ranges::sort(prompt_lengths_, std::greater());
  std::ranges::sort(completion_lengths_, std::greater());
  set_num_rows(live.size() / live.options().num_passes);
}

const RolloutDataset::Block& LongestRollouts::block(int64_t number) const {
  if (number == made_) return block_;
  const int64_t first_row = begin_of(number) / options().num_passes;
  const int64_t per_prompt = options().num_generations;
  std::vector<Rollout> rollouts;
  for (int64_t row = first_row; row < first_row + rows_of(number); ++row) {
    Rollout rollout;
    rollout.prompt.resize(static_cast<size_t>(prompt_lengths_[row / per_prompt]));
    const auto length = static_cast<size_t>(completion_lengths_[row / per_prompt]);
    rollout.completion.resize(length);
    if (has_logprobs()) rollout.logprobs.resize(length);
    rollout.rewards.resize(reward_names().size());
    rollout.group = std::to_string(row / per_prompt);
    for (int64_t i = 0; i < completions_per_row(); ++i) rollouts.push_back(rollout);
  }
  block_ = make_block(std::move(rollouts), /*has_groups=*/true, /*first=*/0);
  made_ = number;
  return block_;
}

}  // namespace tessera
