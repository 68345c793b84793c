#include "worker/data/rollout_dataset.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "worker/data/numpy_permutation.h"
#include "worker/errors.h"

namespace tessera {

RolloutDataset::RolloutDataset(const DatasetOptions& options, Columns columns)
    : options_(*options.rollouts),
      source_(options.sources.front()),
      max_length_(options.max_length),
      columns_(std::move(columns)) {
  check_weights();
}

void RolloutDataset::fail(const std::string& problem) const {
  throw UserError(source_.field,
                  source_.field + " " + source_.paths.front().string() + " " + problem);
}

void RolloutDataset::check_weights() const {
  if (!options_.needs_rewards) return;
  const size_t count = columns_.reward_names.size();
  const size_t weights = options_.reward_weights.size();
  if (weights == 0 || weights == count || count == 0) return;
  const std::string& field = options_.reward_weights_field;
  throw UserError(field, field + " is a list of " + std::to_string(weights) +
                             ", must hold one for each of the " + std::to_string(count) +
                             " rewards" +
                             (options_.is_live ? "" : " of " + source_.paths.front().string()));
}

void RolloutDataset::check_pairs(const Block& block, int64_t first) const {
  for (size_t i = 0; i + 1 < block.rollouts.size(); i += 2) {
    const Rollout &one = block.rollouts[i], &other = block.rollouts[i + 1];
    const int64_t number = first + static_cast<int64_t>(i) + 1;
    const std::string place = std::to_string(number) + " and " + std::to_string(number + 1);
    if (one.group != other.group || one.prompt != other.prompt)
      fail("has rollouts of different prompts at " + place + ", must have two of each in a row");
  }
}

void RolloutDataset::set_num_rows(int64_t num_rows) {
  num_rows_ = num_rows;
  draw_orders(0);
}

void RolloutDataset::draw_orders(int64_t epoch) {
  if (!options_.order_seed) return;
  places_.clear();
  NumpyPermutations permutations(*options_.order_seed);
  const int64_t rows = options_.generation_rows, passes = size() / rows;
  for (int64_t pass = 0; pass < (epoch + 1) * passes; ++pass) {
    const std::vector<int32_t> order = permutations.next(static_cast<int32_t>(rows));
    if (pass >= epoch * passes) places_.insert(places_.end(), order.begin(), order.end());
  }
}

void RolloutDataset::find_groups(Block& block, bool has_groups, int64_t first) const {
  const int64_t size = options_.num_generations;
  std::map<std::string, int32_t> known;
  std::vector<int64_t> members;
  for (int64_t i = 0; i < std::ssize(block.rollouts); ++i) {
    const std::string group = has_groups ? block.rollouts[i].group : std::to_string(i / size);
    const auto number = known.try_emplace(group, static_cast<int32_t>(known.size())).first->second;
    members.resize(known.size());
    ++members[number];
    block.groups.push_back(number);
  }
  block.num_groups = std::ssize(members);
  for (const auto& [group, number] : known) {
    if (members[number] == size) continue;
    fail("has " + std::to_string(members[number]) + " rollouts of group " + group +
         " from rollout " + std::to_string(first + 1) + " on, must have num_generations, " +
         std::to_string(size) + ", among each " + std::to_string(options_.generation_rows));
  }
}

RolloutDataset::Block RolloutDataset::make_block(std::vector<Rollout> rollouts, bool has_groups,
                                                 int64_t first) const {
  Block block{.rollouts = std::move(rollouts), .label_ends = {0}};
  for (const Rollout& rollout : block.rollouts)
    block.label_ends.push_back(block.label_ends.back() + labels_of(rollout));
  if (options_.pairs) check_pairs(block, first);
  if (options_.compares || options_.num_generations > 1) find_groups(block, has_groups, first);
  return block;
}

int64_t RolloutDataset::rows_of(int64_t number) const {
  return std::min(options_.generation_rows, num_rows_ - number * options_.generation_rows);
}

Generation RolloutDataset::generation(int64_t index) const {
  const Block& made = block(number_of(index));
  return {.rollouts = made.rollouts,
          .groups = made.groups,
          .num_groups = made.num_groups,
          .label_ends = made.label_ends};
}

bool RolloutDataset::counts(const Rollout& rollout, size_t token) const {
  if (options_.masks_truncated && rollout.truncated) return false;
  return rollout.mask.empty() || rollout.mask[token] != 0;
}

int64_t RolloutDataset::labels_of(const Rollout& rollout) const {
  int64_t count = 0;
  for (size_t i = 0; i < rollout.completion.size(); ++i) count += counts(rollout, i) ? 1 : 0;
  return count;
}

double RolloutDataset::reward(const Rollout& rollout) const {
  double worth = total_reward(rollout, options_.reward_weights);
  if (options_.zero_if_unjudged && std::isnan(worth)) worth = 0;
  return worth - (rollout.truncated ? options_.truncated_penalty : 0);
}

std::vector<const Rollout*> RolloutDataset::rollouts_of(int64_t index) const {
  const Block& made = block(number_of(index));
  const Rollout* first = &made.rollouts[place(index) * completions_per_row()];
  if (!options_.pairs) return {first};
  const Rollout* second = first + 1;
  if (reward(*first) < reward(*second)) std::swap(first, second);
  return {first, second};
}

size_t RolloutDataset::prompt_tokens(const Rollout& rollout) const {
  if (max_length_ == 0) return rollout.prompt.size();
  const int64_t room = max_length_ - std::ssize(rollout.completion);
  return static_cast<size_t>(std::clamp<int64_t>(room, 1, std::ssize(rollout.prompt)));
}

Row RolloutDataset::row(int64_t index) const {
  Row row;
  for (const Rollout* rollout : rollouts_of(index)) {
    const size_t prompt = prompt_tokens(*rollout);
    row.tokens.insert(row.tokens.end(), rollout->prompt.end() - static_cast<std::ptrdiff_t>(prompt),
                      rollout->prompt.end());
    row.tokens.insert(row.tokens.end(), rollout->completion.begin(), rollout->completion.end());
    row.loss_mask.insert(row.loss_mask.end(), prompt, 0);
    for (size_t i = 0; i < rollout->completion.size(); ++i)
      row.loss_mask.push_back(counts(*rollout, i) ? 1 : 0);
    row.lengths.push_back(static_cast<int32_t>(prompt + rollout->completion.size()));
    if (options_.pairs) row.values.push_back(static_cast<float>(reward(*rollout)));
  }
  return row;
}

std::vector<int32_t> RolloutDataset::lengths(int64_t index) const {
  std::vector<int32_t> lengths;
  for (const Rollout* rollout : rollouts_of(index)) {
    lengths.push_back(static_cast<int32_t>(prompt_tokens(*rollout) + rollout->completion.size()));
  }
  return lengths;
}

int64_t RolloutDataset::num_tokens(int64_t index) const {
  int64_t sum = 0;
  for (const int32_t length : lengths(index)) sum += length;
  return sum;
}

int64_t RolloutDataset::num_labels(int64_t index) const {
  const Block& made = block(number_of(index));
  const int64_t first = place(index) * completions_per_row();
  return made.label_ends[first + completions_per_row()] - made.label_ends[first];
}

}  // namespace tessera
