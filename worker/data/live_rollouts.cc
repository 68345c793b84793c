#include "worker/data/live_rollouts.h"

#include <algorithm>
#include <string>

namespace tessera {

LiveRollouts::LiveRollouts(const DatasetOptions& options,
                           std::unique_ptr<const PackedDataset> prompts)
    : RolloutDataset(options, {options.rollouts->reward_names, options.rollouts->has_logprobs}),
      prompts_(std::move(prompts)) {
  const RolloutOptions& how = this->options();
  const int64_t at_once = how.generation_rows / how.num_generations;
  const int64_t given = prompts_->size();
  const int64_t used = how.whole_generations ? given / at_once * at_once : given;
  // Of a job that is only checked no more than the first records are read.
  if (used == 0 && options.max_documents == 0) {
    fail("holds " + std::to_string(given) + " prompts, must hold at least " +
         std::to_string(at_once) + ", whose completions are made at once");
  }
  set_num_rows(used * how.num_generations);
  for (int64_t i = 0; i < given; ++i)
    longest_prompt_ = std::max(longest_prompt_, prompts_->num_tokens(i));
}

void LiveRollouts::put(int64_t number, std::vector<Rollout> rollouts) {
  const int64_t first = begin_of(number) / options().num_passes * completions_per_row();
  blocks_.insert_or_assign(number, make_block(std::move(rollouts), /*has_groups=*/true, first));
}

}  // namespace tessera
