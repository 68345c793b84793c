// A step of the tiny model as a job builds it, on ranks that are threads: what a technique must not
// change.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "proto/spec/rules.h"
#include "tests/support/ranks.h"
#include "tests/worker/trainer/tiny_model.h"
#include "worker/memory/ledger.h"
#include "worker/trainer/plan.h"

namespace tessera::testing {

// The first block's MLP is dense, the others are of experts.
inline ModelConfig tiny_mixture() {
  ModelConfig config = tiny_config(/*tied=*/false);
  config.model_type = "qwen3_moe";
  config.experts = {.num_experts = 4,
                    .num_experts_per_token = 2,
                    .intermediate_size = 16,
                    .router_aux_loss_coef = 0.1,
                    .name = "mlp",
                    .gate = "gate_proj",
                    .up = "up_proj",
                    .down = "down_proj",
                    .in_layer = {false, true, true}};
  return config;
}

inline v1::JobSpec plain_spec() {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_sft();
  spec.mutable_memory()->set_gradient_checkpointing(false);
  spec.mutable_memory()->set_head_chunk_tokens(8);
  spec.mutable_training()->set_output_dir(::testing::TempDir());
  spec::fill_defaults(spec);
  return spec;
}

struct TinyJob {
  v1::JobSpec spec = plain_spec();
  ModelConfig config = tiny_config(/*tied=*/false);
  int world_size = 1;
  std::vector<int64_t> lengths = {13, 3, 21};
  int num_microbatches = 2;    // of a rank
  bool known_gradient = true;  // the head is told it, as SFT does
};

struct TinyResult {
  std::vector<double> losses;  // by rank, then microbatch
  std::map<std::string, at::Tensor> gradients;
  MemoryTotals after_forward;  // of the last microbatch; of all ranks together
};

inline double forward_and_backward(const TinyJob& job, TrainableModel& trainable, int seed,
                                   TinyResult& result) {
  const OwnerScope scope(Owner::kActivations);
  const Batch batch = make_batch(seed, job.lengths);
  const double scale = -0.01;
  ForwardOptions options{.training = true, .draw = static_cast<uint64_t>(seed)};
  options.aux_loss_weight = job.config.experts.router_aux_loss_coef;
  at::Tensor hidden_TD = trainable.model->forward(batch, options);
  result.after_forward = MemoryLedger::install().snapshot();
  HeadRequest request;
  if (job.known_gradient) {
    request.gradient.logprobs_T = at::full({batch.labels_T.size(0)}, scale, at::kFloat);
  }
  const HeadOutput head = trainable.model->head(hidden_TD, batch, request);
  hidden_TD.reset();
  const at::Tensor loss = head.logprobs_T.sum() * scale;
  torch::autograd::backward({loss}, {});
  trainable.finish_backward();
  return loss.item<double>() + trainable.model->aux_loss();
}

// Losses and gradients of a step. `inspect` sees each rank's model after it.
inline TinyResult run_tiny(const TinyJob& job,
                           const std::function<void(TrainableModel&)>& inspect = {}) {
  at::set_num_threads(1);
  TinyResult result;
  result.losses.resize(static_cast<size_t>(job.world_size * job.num_microbatches));
  std::mutex mutex;
  run_ranks(Backend::kThreads, job.world_size, [&](Collectives& group) {
    TrainableModel trainable = build_model(job.spec, job.config, group, at::kCPU);
    fill_weights(trainable, group.rank());
    TinyResult mine;
    for (int i = 0; i < job.num_microbatches; ++i) {
      const int seed = group.rank() * job.num_microbatches + i;
      const double loss = forward_and_backward(job, trainable, seed, mine);
      const std::lock_guard lock(mutex);
      result.losses[static_cast<size_t>(seed)] = loss;
    }
    const std::lock_guard lock(mutex);
    if (inspect) inspect(trainable);
    result.after_forward = mine.after_forward;
    for (const ShardedUnit* unit : trainable.trainable_units()) {
      for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(group.rank())) {
        at::Tensor& target = result.gradients[slice.entry->name];
        if (!target.defined()) target = at::full({slice.entry->numel}, NAN);
        target.narrow(0, slice.entry_begin, slice.numel)
            .copy_(unit->gradient().narrow(0, slice.shard_begin, slice.numel));
      }
    }
  });
  return result;
}

// Tolerance 0: bit for bit. Of a gradient's largest value; small ones carry the rounding of larger
// ones that they come from.
inline void expect_same(const TinyResult& found, const TinyResult& expected, double tolerance) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_LE(std::abs(found.losses[i] - expected.losses[i]),
              tolerance * std::abs(expected.losses[i]))
        << "loss " << i;
  }
  double largest = 0;
  for (const auto& [name, gradient] : expected.gradients)
    largest = std::max(largest, gradient.abs().max().item<double>());
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    const double scale = gradient.abs().max().item<double>();
    EXPECT_TRUE(scale > 0 || name.find("experts") != std::string::npos) << name;
    const double error = (gradient - found.gradients.at(name)).abs().max().item<double>();
    EXPECT_LE(error, tolerance * std::max(scale, 0.01 * largest)) << name;
  }
}

}  // namespace tessera::testing
