// Sharded training on ranks that are threads, against the same model on one rank: gradients and
// weights.
#include "worker/parallel/shard.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <mutex>
#include <thread>

#include "proto/spec/rules.h"
#include "worker/trainer/plan.h"

namespace tessera {
namespace {

ModelConfig tiny_config(bool tied) {
  ModelConfig config;
  config.model_type = "qwen3";
  config.vocab_size = 37;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 3;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 10;
  config.qk_norm = true;
  config.tie_word_embeddings = tied;
  return config;
}

// Weights by name, the same at every world size.
void fill_weights(TrainableModel& trainable, int rank) {
  for (const auto& unit : trainable.units) {
    for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(rank)) {
      const double salt = static_cast<double>(std::hash<std::string>()(slice.entry->name) % 97);
      const at::Tensor index =
          at::arange(slice.entry_begin, slice.entry_begin + slice.numel, at::kDouble);
      const at::Tensor values =
          (index * 0.7 + salt).sin() * 0.3 + (slice.entry->shape.size() == 1 ? 1.0 : 0.0);
      unit->shard().narrow(0, slice.shard_begin, slice.numel).copy_(values);
    }
  }
}

Batch make_batch(int seed) {
  Batch batch;
  const std::vector<int64_t> lengths{5 + seed, 3, 7};
  batch.documents.cu_seqlens = {0};
  std::vector<at::Tensor> positions;
  for (const int64_t length : lengths) {
    batch.documents.cu_seqlens.push_back(batch.documents.cu_seqlens.back() + length);
    positions.push_back(at::arange(length, at::kLong));
  }
  const int64_t tokens = batch.documents.cu_seqlens.back();
  batch.documents.positions_T = at::cat(positions);
  batch.tokens_T = (at::arange(tokens, at::kLong) * 11 + seed) % 37;
  batch.labels_T = (batch.tokens_T * 5 + 1) % 37;
  batch.label_rows_L = at::arange(tokens, at::kLong);
  return batch;
}

struct Options {
  int world_size = 1;
  bool recompute = true, tied = false, reshard = true, bfloat = false;
};

// Whole gradients by parameter name after two backwards, put together from all ranks. Every world
// size sees the same six microbatches.
std::map<std::string, at::Tensor> gradients(const Options& options) {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_sft();
  spec.mutable_memory()->set_gradient_checkpointing(options.recompute);
  spec.mutable_memory()->set_reshard_after_forward(options.reshard);
  spec.mutable_memory()->set_head_chunk_tokens(4);
  if (options.bfloat) spec.mutable_model()->set_dtype("bfloat16");
  spec::fill_defaults(spec);

  at::set_num_threads(1);
  std::map<std::string, at::Tensor> whole;
  std::mutex mutex;
  auto groups = make_thread_collectives(options.world_size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < options.world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      const ModelConfig config = tiny_config(options.tied);
      TrainableModel trainable = build_model(spec, config, *groups[rank], at::kCPU);
      fill_weights(trainable, rank);
      for (int microbatch = rank; microbatch < 6; microbatch += options.world_size) {
        const Batch batch = make_batch(microbatch);
        const HeadOutput head = trainable.model->head(trainable.model->forward(batch), batch);
        torch::autograd::backward({head.logprobs_T.sum() / -100.0}, {});
        trainable.finish_backward();
      }
      const std::lock_guard lock(mutex);
      for (const auto& unit : trainable.units) {
        for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(rank)) {
          at::Tensor& target = whole[slice.entry->name];
          if (!target.defined()) target = at::full({slice.entry->numel}, NAN);
          target.narrow(0, slice.entry_begin, slice.numel)
              .copy_(unit->gradient().narrow(0, slice.shard_begin, slice.numel));
        }
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return whole;
}

void expect_equal(const Options& options, double tolerance) {
  Options plain;
  plain.recompute = false;
  plain.reshard = false;
  plain.tied = options.tied;
  plain.bfloat = options.bfloat && options.world_size > 1;
  const auto expected = gradients(plain), found = gradients(options);
  ASSERT_EQ(expected.size(), found.size());
  for (const auto& [name, gradient] : expected) {
    const double scale = gradient.abs().max().item<double>();
    EXPECT_GT(scale, 0) << name;
    const double error = (gradient - found.at(name)).abs().max().item<double>();
    EXPECT_LE(error, tolerance * scale) << name;
  }
}

// A block that is recomputed is one function on a CPU, which adds up in another order.
constexpr double kRounding = 1e-5;

TEST(Shard, Recompute) { expect_equal({.recompute = true}, kRounding); }
TEST(Shard, TwoRanks) { expect_equal({.world_size = 2}, 1e-5); }
TEST(Shard, ThreeRanksWhoseShardsDoNotDivide) { expect_equal({.world_size = 3}, 1e-5); }
TEST(Shard, TwoRanksWithoutRecompute) { expect_equal({.world_size = 2, .recompute = false}, 1e-5); }
TEST(Shard, TwoRanksKeepingWeightsAfterForward) {
  expect_equal({.world_size = 2, .reshard = false}, 1e-5);
}
TEST(Shard, TiedEmbeddingOnOneRank) { expect_equal({.tied = true}, kRounding); }
TEST(Shard, TiedEmbeddingOnTwoRanks) { expect_equal({.world_size = 2, .tied = true}, 1e-5); }
TEST(Shard, TiedEmbeddingWithoutRecompute) {
  expect_equal({.world_size = 3, .recompute = false, .tied = true}, 1e-5);
}
TEST(Shard, BfloatComputeIsNearFloat) { expect_equal({.bfloat = true}, 0.2); }
TEST(Shard, BfloatComputeOnTwoRanksIsThatOnOne) {
  expect_equal({.world_size = 2, .bfloat = true}, 0.03);
}

}  // namespace
}  // namespace tessera
