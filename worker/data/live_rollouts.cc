#include "worker/data/live_rollouts.h"

#include <algorithm>
#include <string>

namespace tessera {
namespace {

// Of documents with a prompt.
int32_t first_label(const Row& row) {
  const auto counts = [](uint8_t mask) { return mask != 0; };
  return static_cast<int32_t>(std::ranges::find_if(row.loss_mask, counts) - row.loss_mask.begin());
}

}  // namespace

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
  for (int64_t i = 0; i < given; ++i) {
    prompt_tokens_.push_back(how.has_documents ? first_label(prompts_->row(i))
                                               : static_cast<int32_t>(prompts_->num_tokens(i)));
    longest_prompt_ = std::max<int64_t>(longest_prompt_, prompt_tokens_.back());
  }
}

std::vector<int32_t> LiveRollouts::prompt(int64_t index) const {
  std::vector<int32_t> tokens = prompts_->row(index).tokens;
  tokens.resize(static_cast<size_t>(prompt_tokens_[index]));
  return tokens;
}

Rollout LiveRollouts::document(int64_t index) const {
  const Row row = prompts_->row(index);
  const auto end = static_cast<std::ptrdiff_t>(prompt_tokens_[index]);
  return {.prompt = {row.tokens.begin(), row.tokens.begin() + end},
          .completion = {row.tokens.begin() + end, row.tokens.end()},
          .mask = {row.loss_mask.begin() + end, row.loss_mask.end()}};
}

void LiveRollouts::put(int64_t number, std::vector<Rollout> rollouts) {
  const int64_t first = begin_of(number) / options().num_passes * completions_per_row();
  blocks_.insert_or_assign(number, make_block(std::move(rollouts), /*has_groups=*/true, first));
}

}  // namespace tessera
