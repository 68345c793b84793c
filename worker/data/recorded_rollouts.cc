#include "worker/data/recorded_rollouts.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace tessera {

RecordedRollouts::RecordedRollouts(const DatasetOptions& options, Rollouts rollouts)
    : RolloutDataset(options, {rollouts.reward_names, rollouts.has_logprobs}) {
  const RolloutOptions& how = this->options();
  const int64_t per_row = completions_per_row(), at_once = how.generation_rows;
  const int64_t recorded = std::ssize(rollouts.rollouts) / per_row;
  const int64_t used = how.whole_generations ? recorded / at_once * at_once : recorded;
  if (used == 0) {
    fail("holds " + std::to_string(std::ssize(rollouts.rollouts)) +
         " rollouts, must hold at least " +
         std::to_string(how.whole_generations ? at_once : per_row) +
         ", which are trained on at once");
  }
  if (how.needs_rewards && rollouts.reward_names.empty()) fail("holds no \"rewards\"");
  set_num_rows(used);
  for (int64_t row = 0; row < used; row += at_once) {
    const auto begin = rollouts.rollouts.begin() + row * per_row;
    const auto end = begin + std::min(at_once, used - row) * per_row;
    blocks_.push_back(make_block({std::make_move_iterator(begin), std::make_move_iterator(end)},
                                 rollouts.has_groups, row * per_row));
  }
}

}  // namespace tessera
