// Sharded training on ranks that are threads, against the same model on one rank: gradients and
// weights.
#include "worker/parallel/shard.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <thread>

#include "proto/spec/rules.h"
#include "tests/worker/trainer/tiny_model.h"
#include "worker/trainer/plan.h"

namespace tessera {
namespace {

using testing::fill_weights;
using testing::make_batch;
using testing::tiny_config;
using testing::train_on;

// Whether a parameter is frozen.
using IsFrozen = bool (*)(const std::string& name);

struct Options {
  int world_size = 1;
  bool recompute = true, tied = false, reshard = true, bfloat = false;
  IsFrozen is_frozen = [](const std::string&) { return false; };
};

void freeze(DecoderModel& model, IsFrozen is_frozen) {
  const auto each = [&](const std::vector<Parameter*>& parameters) {
    for (Parameter* parameter : parameters) parameter->trainable = !is_frozen(parameter->name);
  };
  for (const auto& layer : model.layers()) each(layer->parameters());
  each(model.head_parameters());
}

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
      std::unique_ptr<DecoderModel> model = make_layers(spec, tiny_config(options.tied));
      freeze(*model, options.is_frozen);
      TrainableModel trainable = shard_model(spec, std::move(model), *groups[rank], at::kCPU);
      fill_weights(trainable, rank);
      for (int microbatch = rank; microbatch < 6; microbatch += options.world_size) {
        train_on(trainable, make_batch(microbatch));
      }
      const std::lock_guard lock(mutex);
      for (const ShardedUnit* unit : trainable.trainable_units()) {
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
  for (const auto& [name, gradient] : expected) {
    ASSERT_EQ(found.contains(name), !options.is_frozen(name)) << name;
    if (options.is_frozen(name)) continue;
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

// As adapters have it: all but a few parameters of each block, and the ends of the model.
bool all_but_some(const std::string& name) {
  return !name.ends_with("q_proj.weight") && !name.ends_with("down_proj.weight") &&
         !name.ends_with("k_norm.weight");
}
// Nothing is trained below the last block, so that backward ends there.
bool all_but_the_last_block(const std::string& name) {
  return name.find("layers.2.") == std::string::npos;
}
// Blocks between trained ones pass gradients on.
bool all_but_the_ends(const std::string& name) {
  return name.find("layers.") != std::string::npos && name.find("layers.0.") == std::string::npos;
}
bool embedding(const std::string& name) { return name.find("embed_tokens") != std::string::npos; }

constexpr IsFrozen kFrozen[] = {all_but_some, all_but_the_last_block, all_but_the_ends, embedding};

TEST(Frozen, LeavesTheOtherGradientsOnOneRank) {
  for (const IsFrozen is_frozen : kFrozen) {
    expect_equal({.is_frozen = is_frozen}, kRounding);
    expect_equal({.recompute = false, .is_frozen = is_frozen}, 0);
  }
}
TEST(Frozen, LeavesTheOtherGradientsOnTwoRanks) {
  for (const IsFrozen is_frozen : kFrozen) {
    expect_equal({.world_size = 2, .is_frozen = is_frozen}, 1e-5);
    expect_equal({.world_size = 2, .recompute = false, .is_frozen = is_frozen}, 1e-5);
    expect_equal({.world_size = 2, .reshard = false, .is_frozen = is_frozen}, 1e-5);
  }
}
TEST(Frozen, LeavesTheOtherGradientsOfATiedModel) {
  expect_equal({.tied = true, .is_frozen = embedding}, kRounding);
  expect_equal({.world_size = 2, .tied = true, .is_frozen = embedding}, 1e-5);
  expect_equal({.world_size = 2, .tied = true, .is_frozen = all_but_some}, 1e-5);
}
TEST(Frozen, LeavesTheOtherGradientsInBfloat) {
  expect_equal({.bfloat = true, .is_frozen = all_but_some}, 0.2);
  expect_equal({.world_size = 2, .bfloat = true, .is_frozen = all_but_some}, 0.03);
}

// What of a frozen parameter is stored: weights in the compute dtype, and nothing else.
TEST(Frozen, UnitsAreStoredInTheComputeDtype) {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_sft();
  spec.mutable_model()->set_dtype("bfloat16");
  spec::fill_defaults(spec);
  auto groups = make_thread_collectives(1);
  std::unique_ptr<DecoderModel> model = make_layers(spec, tiny_config(/*tied=*/false));
  freeze(*model, all_but_some);
  EXPECT_EQ(trainable_layouts(*model, 1).size(), 3u);
  TrainableModel trainable = shard_model(spec, std::move(model), *groups[0], at::kCPU);
  ASSERT_EQ(trainable.units.size(), 8u);
  EXPECT_EQ(trainable.trainable_units().size(), 3u);
  fill_weights(trainable, 0);
  train_on(trainable, make_batch(1));
  for (const auto& unit : trainable.units) {
    EXPECT_EQ(unit->layout().name.ends_with(".frozen"), !unit->trainable());
    EXPECT_EQ(unit->shard().scalar_type(), unit->trainable() ? at::kFloat : at::kBFloat16);
    EXPECT_EQ(unit->gradient().defined(), unit->trainable()) << unit->layout().name;
  }
}

}  // namespace
}  // namespace tessera
