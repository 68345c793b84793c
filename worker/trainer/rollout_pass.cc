#include "worker/trainer/rollout_pass.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "worker/errors.h"
#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"
#include "worker/objectives/gae.h"
#include "worker/trainer/generation_buffer.h"

namespace tessera {
namespace {

std::string to_bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::vector<float> from_bytes(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// Those of the labels that a batch has; undefined where there are none at all.
at::Tensor of_labels(const std::vector<float>& values, const at::Tensor& numbers_L) {
  if (values.empty()) return {};
  at::Tensor out = at::empty({numbers_L.size(0)}, at::kFloat);
  const auto* numbers = numbers_L.const_data_ptr<int64_t>();
  auto* to = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < out.numel(); ++i) to[i] = values[numbers[i]];
  return out;
}

// Those of the rollouts at these places; undefined where there are none at all.
at::Tensor of_sequences(const std::vector<float>& values, const std::vector<int64_t>& places) {
  if (values.empty()) return {};
  at::Tensor out = at::empty({std::ssize(places)}, at::kFloat);
  auto* to = out.mutable_data_ptr<float>();
  for (const int64_t place : places) *to++ = values[place];
  return out;
}

}  // namespace

RolloutPass::RolloutPass(const Parts& parts)
    : parts_(parts), needs_(parts.method.needs(parts.rollouts)) {}

Batch RolloutPass::microbatch(const Models& models, int64_t epoch, int64_t row) {
  const Begin begin = begin_of(epoch, row);
  if (begin != begin_) {
    take(begin, score(models, begin));
    metrics_.insert(metrics_.end(), targets_.metrics.begin(), targets_.metrics.end());
  }
  Batch batch = parts_.share.of(parts_.loader.microbatch(epoch, row));
  batch.completions = targets_of(batch, epoch, row);
  return batch;
}

void RolloutPass::take(const Begin& begin, GenerationScores scores) {
  begin_ = begin;
  scores_ = std::move(scores);
  targets_ = parts_.method.targets(parts_.rollouts, parts_.rollouts.generation(begin.row), scores_);
}

GenerationScores RolloutPass::score(const Models& models, const Begin& begin) const {
  if (needs_.count() == 0) return {};
  const OwnerScope scope(Owner::kActivations);
  const Generation generation = parts_.rollouts.generation(begin.row);
  GenerationBuffer buffer(needs_, generation.num_labels(), generation.size(), parts_.device);
  const int64_t rows = parts_.rollouts.options().generation_rows;
  for (int64_t row = begin.row; row < begin.row + rows; row += parts_.loader.microbatch_rows()) {
    const Batch batch = parts_.share.of(parts_.loader.microbatch(begin.epoch, row));
    buffer.put(score_batch(models, to_device(batch, parts_.device), needs_), batch,
               places_of(begin.epoch, row));
  }
  return buffer.gather(parts_.mesh.world);
}

// Of this rank's rows of a microbatch, in their generation.
std::vector<int64_t> RolloutPass::places_of(int64_t epoch, int64_t row) const {
  std::vector<int64_t> places;
  parts_.loader.each_row(epoch, row, parts_.mesh.data.rank(),
                         [&](int64_t index) { places.push_back(parts_.rollouts.place(index)); });
  return places;
}

// What differs from rank to rank, of all of them.
void RolloutPass::count(int64_t epoch, int64_t row, CompletionTargets& targets) const {
  for (int rank = 0; rank < parts_.mesh.data.size(); ++rank) {
    int64_t labels = 0;
    parts_.loader.each_row(epoch, row, rank, [&](int64_t index) {
      labels += parts_.rollouts.num_labels(index);
      targets.num_values += has_end_value(parts_.rollouts.place(index)) ? 1 : 0;
    });
    targets.num_values += labels;
    targets.most_labels = std::max(targets.most_labels, labels);
  }
}

bool RolloutPass::has_end_value(int64_t place) const {
  return !targets_.end_returns.empty() && !std::isnan(targets_.end_returns[place]);
}

CompletionTargets RolloutPass::targets_of(const Batch& batch, int64_t epoch, int64_t row) const {
  const OwnerScope scope(Owner::kData);
  CompletionTargets targets;
  const Generation generation = parts_.rollouts.generation(begin_.row);
  targets.num_generation_labels = generation.num_labels();
  targets.longest_labels = longest_labels(generation);
  count(epoch, row, targets);
  const std::vector<int64_t> places = places_of(epoch, row);
  targets.advantages_S = of_sequences(targets_.advantages, places);
  const at::Tensor& numbers_L = batch.label_numbers_L;
  targets.old_logprobs_L = of_labels(scores_.old_logprobs, numbers_L);
  targets.reference_logprobs_L = of_labels(scores_.reference_logprobs, numbers_L);
  targets.sampling_logprobs_L = of_labels(targets_.sampling_logprobs, numbers_L);
  targets.weights_L = of_labels(targets_.weights, numbers_L);
  if (!needs_.values) return targets;
  targets.advantages_L = of_labels(targets_.label_advantages, numbers_L);
  targets.values_L = of_labels(scores_.values, numbers_L);
  targets.returns_L = of_labels(targets_.returns, numbers_L);
  targets.end_values_S = of_sequences(scores_.end_values, places);
  targets.end_returns_S = of_sequences(targets_.end_returns, places);
  targets.end_counts_S = at::isnan(targets.end_returns_S).logical_not().to(at::kFloat);
  targets.end_returns_S.nan_to_num_(/*nan=*/0);
  return targets;
}

std::vector<std::pair<std::string, double>> RolloutPass::take_metrics() {
  return std::exchange(metrics_, {});
}

void RolloutPass::save(v1::CheckpointState& state) const {
  state.set_generation_rows(parts_.loader.generation_rows());
  state.clear_generation();
  if (begin_of(state.epoch(), state.row()) != begin_) return;
  v1::GenerationScores& generation = *state.mutable_generation();
  generation.set_row(begin_.row);
  generation.set_old_logprobs(to_bytes(scores_.old_logprobs));
  generation.set_reference_logprobs(to_bytes(scores_.reference_logprobs));
  generation.set_values(to_bytes(scores_.values));
  generation.set_end_values(to_bytes(scores_.end_values));
}

void RolloutPass::resume(const v1::CheckpointState& state, int64_t epoch, int64_t row) {
  const Begin begin = begin_of(epoch, row);
  // At its first row nothing was computed of it yet.
  if (!state.has_generation() || state.generation().row() != begin.row || row == begin.row) return;
  const v1::GenerationScores& saved = state.generation();
  GenerationScores scores{.old_logprobs = from_bytes(saved.old_logprobs()),
                          .reference_logprobs = from_bytes(saved.reference_logprobs()),
                          .values = from_bytes(saved.values()),
                          .end_values = from_bytes(saved.end_values())};
  const Generation generation = parts_.rollouts.generation(begin.row);
  const auto fits = [](bool is_needed, const std::vector<float>& values, int64_t count) {
    return !is_needed || std::ssize(values) == count;
  };
  const int64_t labels = generation.num_labels();
  if (!fits(needs_.old_logprobs, scores.old_logprobs, labels) ||
      !fits(needs_.reference_logprobs, scores.reference_logprobs, labels) ||
      !fits(needs_.values, scores.values, labels) ||
      !fits(needs_.values, scores.end_values, generation.size())) {
    throw UserError(
        "data.rollouts",
        "data.rollouts holds other completions than those that the checkpoint is in the "
        "middle of; with training.ignore_data_skip the epoch begins anew");
  }
  take(begin, std::move(scores));
}

RehearsedCompletions::RehearsedCompletions(const OnlineMethod& method,
                                           const RolloutDataset& rollouts)
    : needs_(method.needs(rollouts)),
      num_labels_(rollouts.generation(0).num_labels()),
      num_rollouts_(rollouts.generation(0).size()) {
  const auto zeros = [](bool is_needed, int64_t count) {
    return std::vector<float>(is_needed ? static_cast<size_t>(count) : 0);
  };
  targets_ = method.targets(rollouts, rollouts.generation(0),
                            {.old_logprobs = zeros(needs_.old_logprobs, num_labels_),
                             .reference_logprobs = zeros(needs_.reference_logprobs, num_labels_),
                             .values = zeros(needs_.values, num_labels_),
                             .end_values = zeros(needs_.values, num_rollouts_)});
}

CompletionTargets RehearsedCompletions::targets_of(const Batch& batch, at::Device device) const {
  const OwnerScope scope(Owner::kData);
  const auto values = [&](bool is_there, int64_t count) {
    if (!is_there) return at::Tensor();
    return at::empty({count}, at::TensorOptions(host_device(device)).dtype(at::kFloat));
  };
  const auto& part = batch.documents.part;
  CompletionTargets targets;
  targets.num_generation_labels = num_labels_;
  targets.most_labels = batch.num_labels * (part ? part->size : 1);
  targets.advantages_S = values(!targets_.advantages.empty(), batch.num_sequences);
  targets.old_logprobs_L = values(needs_.old_logprobs, batch.num_labels);
  targets.reference_logprobs_L = values(needs_.reference_logprobs, batch.num_labels);
  targets.sampling_logprobs_L = values(!targets_.sampling_logprobs.empty(), batch.num_labels);
  targets.weights_L = values(!targets_.weights.empty(), batch.num_labels);
  for (at::Tensor* of_labels : {&targets.advantages_L, &targets.values_L, &targets.returns_L})
    *of_labels = values(needs_.values, batch.num_labels);
  for (at::Tensor* of_ends : {&targets.end_values_S, &targets.end_returns_S, &targets.end_counts_S})
    *of_ends = values(needs_.values, batch.num_sequences);
  return targets;
}

void RehearsedCompletions::score(const Models& models, const Batch& batch,
                                 at::Device device) const {
  if (needs_.count() == 0) return;
  const OwnerScope scope(Owner::kActivations);
  const GenerationBuffer buffer(needs_, num_labels_, num_rollouts_, device);
  score_batch(models, batch, needs_);
}

}  // namespace tessera
