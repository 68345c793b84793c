// A step of a tiny model under an objective, over ranks that are threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "proto/spec/rules.h"
#include "tests/support/ranks.h"
#include "tests/worker/trainer/tiny_model.h"
#include "worker/objectives/objective.h"

namespace tessera::testing {

struct ObjectiveJob {
  v1::JobSpec spec;
  ModelConfig config = tiny_config(/*tied=*/false);
  std::optional<ModelConfig> teacher;  // gkd's
  std::optional<ModelConfig> reference;
  int world_size = 1;
  // The rows of each, over all ranks: dealt out in order, a rank may get none.
  std::vector<std::vector<Batch>> microbatches;
  bool trains = true;
  // Changes a model before the step.
  std::function<void(TrainableModel&, int rank)> adjust = [](TrainableModel&, int) {};
};

struct ObjectiveResult {
  double loss = 0;                                   // what backward runs for, of all ranks
  std::vector<std::map<std::string, double>> means;  // of each microbatch, by metric
  std::map<std::string, at::Tensor> gradients;
};

// Rows one after the other; one ignored token where there are none.
inline Batch join_rows(const std::vector<Batch>& rows) {
  Batch out;
  out.documents.cu_seqlens = {0};
  std::vector<at::Tensor> tokens, labels, positions, label_rows, label_documents, values,
      completions, scores;
  std::vector<Batch> mismatched;
  for (const Batch& row : rows) {
    const int64_t begin = out.documents.cu_seqlens.back();
    if (row.label_documents_L.defined())
      label_documents.push_back(row.label_documents_L + out.num_sequences);
    if (row.completion_tokens_S.defined()) completions.push_back(row.completion_tokens_S);
    if (row.reference_logps_S.defined()) scores.push_back(row.reference_logps_S);
    if (row.mismatched != nullptr) mismatched.push_back(*row.mismatched);
    for (size_t s = 1; s < row.documents.cu_seqlens.size(); ++s)
      out.documents.cu_seqlens.push_back(begin + row.documents.cu_seqlens[s]);
    for (const int64_t token : row.scored_tokens) out.scored_tokens.push_back(begin + token);
    tokens.push_back(row.tokens_T);
    labels.push_back(row.labels_T);
    positions.push_back(row.documents.positions_T);
    label_rows.push_back(row.label_rows_L + begin);
    if (row.values_S.defined()) values.push_back(row.values_S);
    out.num_tokens += row.num_tokens;
    out.num_labels += row.num_labels;
    out.num_sequences += row.num_sequences;
  }
  if (rows.empty()) {
    out.documents.cu_seqlens.push_back(1);
    tokens = positions = {at::zeros({1}, at::kLong)};
    labels = {at::full({1}, kIgnoredLabel, at::kLong)};
    label_rows = label_documents = completions = {at::zeros({0}, at::kLong)};
    values = scores = {at::zeros({0})};
  }
  out.tokens_T = at::cat(tokens);
  out.labels_T = at::cat(labels);
  out.documents.positions_T = at::cat(positions);
  out.label_rows_L = at::cat(label_rows);
  if (!values.empty()) out.values_S = at::cat(values);
  if (!label_documents.empty()) out.label_documents_L = at::cat(label_documents);
  if (!completions.empty()) out.completion_tokens_S = at::cat(completions);
  if (!scores.empty()) out.reference_logps_S = at::cat(scores);
  if (!mismatched.empty()) out.mismatched = std::make_shared<const Batch>(join_rows(mismatched));
  return out;
}

// This rank's part of a microbatch.
inline Batch deal(const std::vector<Batch>& rows, int rank, int world_size) {
  const auto count = static_cast<int64_t>(rows.size());
  const auto begin_of = [&](int r) { return count * r / world_size; };
  Batch batch = join_rows({rows.begin() + begin_of(rank), rows.begin() + begin_of(rank + 1)});
  // What no row has, a rank without rows has not either.
  const auto drop_what_others_lack = [](Batch& mine, const Batch& others) {
    if (!others.reference_logps_S.defined()) mine.reference_logps_S.reset();
    if (!others.values_S.defined()) mine.values_S.reset();
    if (!others.completion_tokens_S.defined()) mine.completion_tokens_S.reset();
  };
  const Batch all = join_rows(rows);
  drop_what_others_lack(batch, all);
  if (all.mismatched != nullptr && batch.mismatched == nullptr) {
    Batch none = join_rows({});
    drop_what_others_lack(none, *all.mismatched);
    batch.mismatched = std::make_shared<const Batch>(std::move(none));
  }
  batch.num_rows_of_all = count;
  for (int r = 0; r < world_size; ++r) batch.rows_of_rank.push_back(begin_of(r + 1) - begin_of(r));
  return batch;
}

inline void add_gradients(TrainableModel& trainable, int rank,
                          std::map<std::string, at::Tensor>& gradients) {
  for (const ShardedUnit* unit : trainable.trainable_units()) {
    for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(rank)) {
      at::Tensor& target = gradients[slice.entry->name];
      if (!target.defined()) target = at::full({slice.entry->numel}, NAN);
      target.narrow(0, slice.entry_begin, slice.numel)
          .copy_(unit->gradient().narrow(0, slice.shard_begin, slice.numel));
    }
  }
}

inline TrainableModel make_frozen(const v1::JobSpec& spec, const ModelConfig& config,
                                  Collectives& group) {
  auto model = std::make_unique<DecoderModel>(config, 8);
  for (const auto& layer : model->layers()) {
    for (Parameter* parameter : layer->parameters()) parameter->trainable = false;
  }
  for (Parameter* parameter : model->head_parameters()) parameter->trainable = false;
  return shard_model(spec, std::move(model), group, at::kCPU);
}

inline ObjectiveResult run_objective(const ObjectiveJob& job) {
  at::set_num_threads(1);
  ObjectiveResult result;
  std::mutex mutex;
  StepShare share;
  share.num_microbatches = std::ssize(job.microbatches);
  share.num_labels = 0;
  for (const auto& rows : job.microbatches) {
    for (const Batch& row : rows) share.num_labels += row.num_labels;
  }
  std::vector<at::Tensor> sums(job.microbatches.size());
  run_ranks(Backend::kThreads, job.world_size, [&](Collectives& group) {
    const c10::AutoGradMode mode(job.trains);
    const std::unique_ptr<Objective> objective = make_objective(job.spec, group);
    TrainableModel trainable = build_model(job.spec, job.config, group, at::kCPU);
    fill_weights(trainable, group.rank());
    job.adjust(trainable, group.rank());
    std::optional<TrainableModel> teacher;
    if (job.teacher) {
      teacher.emplace(make_frozen(job.spec, *job.teacher, group));
      fill_weights(*teacher, group.rank());
    }
    std::optional<TrainableModel> reference;
    if (job.reference) {
      reference.emplace(make_frozen(job.spec, *job.reference, group));
      fill_weights(*reference, group.rank());
      for (const auto& unit : reference->units) unit->shard().mul_(1.1);
    }
    const Models models{*trainable.model, reference ? reference->model.get() : nullptr,
                        teacher ? teacher->model.get() : nullptr};
    for (size_t i = 0; i < job.microbatches.size(); ++i) {
      const Batch batch = deal(job.microbatches[i], group.rank(), group.size());
      const ObjectiveOutput output = objective->run(models, batch, share);
      if (job.trains) {
        torch::autograd::backward({output.loss}, {});
        trainable.finish_backward();
      }
      const std::lock_guard lock(mutex);
      result.loss += output.loss.item<double>();
      sums[i] = sums[i].defined() ? sums[i] + output.sums : output.sums;
    }
    const std::lock_guard lock(mutex);
    if (job.trains) add_gradients(trainable, group.rank(), result.gradients);
  });
  const auto single = make_single_collectives();
  const auto metrics = make_objective(job.spec, *single)->metrics();
  for (const at::Tensor& of_microbatch : sums) {
    auto& means = result.means.emplace_back();
    for (size_t m = 0; m < metrics.size(); ++m) {
      const at::Tensor pair = of_microbatch[static_cast<int64_t>(m)];
      means[metrics[m].name] = pair[0].item<double>() / pair[1].item<double>();
    }
  }
  return result;
}

inline void expect_same_step(const ObjectiveResult& found, const ObjectiveResult& expected,
                             double tolerance) {
  ASSERT_EQ(found.means.size(), expected.means.size());
  for (size_t i = 0; i < expected.means.size(); ++i) {
    for (const auto& [name, mean] : expected.means[i])
      EXPECT_NEAR(found.means[i].at(name), mean, tolerance * (1 + std::abs(mean))) << name;
  }
  double largest = 0;
  for (const auto& [name, gradient] : expected.gradients)
    largest = std::max(largest, gradient.abs().max().item<double>());
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    const double error = (gradient - found.gradients.at(name)).abs().max().item<double>();
    EXPECT_LE(error, tolerance * largest) << name;
  }
}

}  // namespace tessera::testing
