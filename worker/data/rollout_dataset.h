// Completions as rows of a dataset, in the order in which they are trained on.
//
// Rows are made generation_rows at a time and gone through num_passes times before the next ones
// are, each time in an order of its own where there is an order_seed. Where completions come from
// is a matter of the class below it: files (recorded_rollouts.h), the model itself
// (live_rollouts.h), or nowhere (longest_rollouts.h).
#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "worker/data/dataset.h"
#include "worker/data/rollouts.h"

namespace tessera {

// Completions that were made at once.
struct Generation {
  std::span<const Rollout> rollouts;
  std::span<const int32_t> groups;  // of each, from 0; empty where they are not compared
  int64_t num_groups = 0;
  std::span<const int64_t> label_ends;  // labels before each, and of all

  int64_t size() const { return std::ssize(rollouts); }
  int64_t num_labels() const { return label_ends.back(); }
  // Of a rollout's labels, among those of all of these.
  int64_t first_label(int64_t rollout) const { return label_ends[rollout]; }
  int64_t labels_of(int64_t rollout) const { return label_ends[rollout + 1] - label_ends[rollout]; }
};

class RolloutDataset : public Dataset {
 public:
  int64_t size() const override { return num_rows_ * options_.num_passes; }
  Row row(int64_t index) const override;
  int64_t num_tokens(int64_t index) const override;
  int64_t num_labels(int64_t index) const override;
  std::vector<int32_t> lengths(int64_t index) const override;
  bool has_values() const override { return options_.pairs; }
  int documents_per_row() const override { return options_.pairs ? 2 : 1; }
  const RolloutDataset* rollouts() const override { return this; }

  const RolloutOptions& options() const { return options_; }
  const std::vector<std::string>& reward_names() const { return columns_.reward_names; }
  bool has_logprobs() const { return columns_.has_logprobs; }

  // Generations are counted through an epoch. That of a row, and the first row of one.
  int64_t number_of(int64_t index) const { return index / rows_of_passes(); }
  int64_t begin_of(int64_t number) const { return number * rows_of_passes(); }
  int64_t num_generations() const { return (size() + rows_of_passes() - 1) / rows_of_passes(); }
  // The rows of one in a pass: generation_rows, but for the last, which may have fewer.
  int64_t rows_of(int64_t number) const;
  // Completions of a row.
  int64_t completions_per_row() const { return options_.pairs ? 2 : 1; }

  // The row at which those begin that are made with row `index`.
  int64_t generation_begin(int64_t index) const { return begin_of(number_of(index)); }
  // Their rollouts.
  Generation generation(int64_t index) const;
  // The place of a row among these, whichever pass it is in.
  int64_t place(int64_t index) const {
    return places_.empty() ? index % options_.generation_rows : places_[index];
  }
  // Whether the token of the completion is a label.
  bool counts(const Rollout& rollout, size_t token) const;
  // What a completion is worth in all, as RolloutOptions say. Where nothing can judge it, that is
  // NaN, or with zero_if_unjudged what a reward of 0 makes it.
  double reward(const Rollout& rollout) const;

 protected:
  // What all rollouts have.
  struct Columns {
    std::vector<std::string> reward_names;
    bool has_logprobs = false;
  };
  // The rollouts of a generation, and what follows from them.
  struct Block {
    std::vector<Rollout> rollouts;
    std::vector<int64_t> label_ends;
    std::vector<int32_t> groups;
    int64_t num_groups = 0;
  };

  // Throws UserError: a list of weights that is not of the rewards.
  RolloutDataset(const DatasetOptions& options, Columns columns);
  // To be called once, before anything is asked.
  void set_num_rows(int64_t num_rows);
  // The orders of an epoch's passes, where they have some, are those that follow on the ones of the
  // epochs before.
  void draw_orders(int64_t epoch);
  // Throws UserError: groups of another size than num_generations, pairs of different prompts.
  // `first`: of these rollouts among all, for errors. Without `has_groups`, so many in a row as
  // num_generations are a group.
  Block make_block(std::vector<Rollout> rollouts, bool has_groups, int64_t first) const;
  [[noreturn]] void fail(const std::string& problem) const;

  // Valid until another one is asked for.
  virtual const Block& block(int64_t number) const = 0;

 private:
  int64_t rows_of_passes() const { return options_.generation_rows * options_.num_passes; }
  // The rollouts of a row: one, or the chosen and the rejected one.
  std::vector<const Rollout*> rollouts_of(int64_t index) const;
  int64_t labels_of(const Rollout& rollout) const;
  // Tokens of the prompt, counted from its end, that stay.
  size_t prompt_tokens(const Rollout& rollout) const;
  void check_weights() const;
  void find_groups(Block& block, bool has_groups, int64_t first) const;
  void check_pairs(const Block& block, int64_t first) const;

  const RolloutOptions options_;
  const DataSource source_;
  const int64_t max_length_;
  const Columns columns_;
  int64_t num_rows_ = 0;         // that are used, of one pass
  std::vector<int32_t> places_;  // of each row, where passes have orders of their own
};

}  // namespace tessera
