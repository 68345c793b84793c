// Completions that the model makes while it is trained: rows whose number is known beforehand, and
// whose content is there from when it was made until it is dropped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "worker/data/packed_dataset.h"
#include "worker/data/rollout_dataset.h"

namespace tessera {

// Thread compatible, unlike other datasets: what put() and drop() change is not to be read
// meanwhile.
class LiveRollouts final : public RolloutDataset {
 public:
  // `prompts`: a document each, of which tokens that count, if there are any, are a completion that
  // the data has already. Throws UserError: fewer than a generation has; and as RolloutDataset
  // does.
  LiveRollouts(const DatasetOptions& options, std::unique_ptr<const PackedDataset> prompts);

  const PackedDataset& prompts() const { return *prompts_; }
  // Tokens of prompt `index`.
  std::vector<int32_t> prompt(int64_t index) const;
  // With the data's own completion.
  Rollout document(int64_t index) const;
  // Tokens of that; 0: the data has none.
  int64_t completion_tokens(int64_t index) const {
    return prompts_->num_tokens(index) - prompt_tokens_[index];
  }
  int64_t prompt_tokens(int64_t index) const { return prompt_tokens_[index]; }
  int64_t longest_prompt() const { return longest_prompt_; }
  // Prompts of generation `number`, and rows of each.
  int64_t prompts_of(int64_t number) const { return rows_of(number) / options().num_generations; }

  bool has(int64_t number) const { return blocks_.contains(number); }
  // Rollouts of generation `number`, in the order of its rows, with their groups.
  void put(int64_t number, std::vector<Rollout> rollouts);
  void drop_before(int64_t number) { blocks_.erase(blocks_.begin(), blocks_.lower_bound(number)); }
  // There are none yet.
  void begin_epoch(int64_t epoch) {
    blocks_.clear();
    draw_orders(epoch);
  }

 private:
  const Block& block(int64_t number) const override { return blocks_.at(number); }

  const std::unique_ptr<const PackedDataset> prompts_;
  std::vector<int32_t> prompt_tokens_;  // of each
  int64_t longest_prompt_ = 0;
  std::map<int64_t, Block> blocks_;
};

}  // namespace tessera
