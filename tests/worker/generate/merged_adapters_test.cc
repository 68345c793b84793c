// Completions of merged adapters are those of the adapters beside their matrices, and leave no
// trace.
#include "worker/generate/merged_adapters.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "tests/worker/generate/tiny_engine.h"

namespace tessera {
namespace {

using testing::Backend;
using testing::EngineCase;
using testing::EngineRank;
using testing::run_ranks;
using testing::sampled_requests;

constexpr double kRounding = 1e-5;

struct MergeCase {
  const char* name;
  WeightMode mode = WeightMode::kGather;
  int world_size = 1;
  const char* dtype = "float32";
  const char* sharding = "zero3";
  bool dora = false;
  bool offloads = false;
};
void PrintTo(const MergeCase& c, std::ostream* out) { *out << c.name; }

EngineCase engine_case(const MergeCase& c, bool merges) {
  EngineCase engine;
  engine.spec.mutable_model()->set_dtype(c.dtype);
  engine.spec.mutable_memory()->set_sharding(c.sharding);
  if (c.offloads) engine.spec.mutable_memory()->set_offload_param_device("cpu");
  v1::Peft& peft = *engine.spec.mutable_peft();
  peft.set_lora_r(3);
  peft.set_lora_alpha(6);
  peft.set_use_dora(c.dora);
  for (const char* module : {"q_proj", "v_proj", "down_proj"}) peft.add_lora_target_modules(module);
  spec::fill_defaults(engine.spec);
  engine.options.weights = c.mode;
  engine.options.merges_adapters = merges;
  return engine;
}

std::vector<at::Tensor> shards_of(const TrainableModel& model) {
  std::vector<at::Tensor> shards;
  for (const auto& unit : model.units) shards.push_back(unit->shard().clone());
  return shards;
}

bool all_equal(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  return std::ranges::equal(some, others,
                            [](const at::Tensor& a, const at::Tensor& b) { return a.equal(b); });
}

// Of each rank, for the same requests on each.
std::vector<std::vector<Completion>> completions_of(const MergeCase& c, bool merges) {
  at::set_num_threads(1);
  const EngineCase engine = engine_case(c, merges);
  std::vector<std::vector<Completion>> of_ranks(static_cast<size_t>(c.world_size));
  std::atomic<bool> is_changed = false;  // a rank need not have a part of what is adapted
  run_ranks(Backend::kThreads, c.world_size, [&](Collectives& group) {
    EngineRank rank(engine, group);
    const std::vector<at::Tensor> before = shards_of(rank.trainable);
    rank.engine->wake();
    if (!all_equal(shards_of(rank.trainable), before)) is_changed = true;
    of_ranks[group.rank()] = rank.engine->generate(sampled_requests(6, 2));
    rank.engine->fall_asleep(SleepLevel::kDrop);
    EXPECT_TRUE(all_equal(shards_of(rank.trainable), before));
    // A generation after another begins with the same weights.
    const std::vector<Completion> again = rank.engine->generate(sampled_requests(6, 2));
    for (size_t i = 0; i < again.size(); ++i)
      EXPECT_EQ(again[i].logprobs, of_ranks[group.rank()][i].logprobs);
  });
  EXPECT_EQ(is_changed, merges);
  return of_ranks;
}

class MergedAdapters : public ::testing::TestWithParam<MergeCase> {};

TEST_P(MergedAdapters, MakeTheSameTokensAndLeaveTheWeightsAsTheyWere) {
  const auto apart = completions_of(GetParam(), false), merged = completions_of(GetParam(), true);
  bool any_differs = false;
  for (size_t rank = 0; rank < apart.size(); ++rank) {
    ASSERT_EQ(apart[rank].size(), merged[rank].size());
    for (size_t i = 0; i < apart[rank].size(); ++i) {
      const Completion &one = apart[rank][i], &other = merged[rank][i];
      ASSERT_EQ(one.tokens, other.tokens);
      for (size_t t = 0; t < one.logprobs.size(); ++t) {
        EXPECT_NEAR(one.logprobs[t], other.logprobs[t], kRounding);
        any_differs |= one.logprobs[t] != other.logprobs[t];
      }
    }
  }
  EXPECT_TRUE(any_differs) << "the passes ran as without merging";
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MergedAdapters,
    ::testing::Values(
        MergeCase{"one_rank"}, MergeCase{.name = "gather", .world_size = 2},
        MergeCase{.name = "layerwise", .mode = WeightMode::kLayerwise, .world_size = 3},
        MergeCase{.name = "zero2", .world_size = 2, .sharding = "zero2"},
        MergeCase{.name = "dora", .world_size = 3, .dora = true},
        MergeCase{.name = "dora_zero2", .world_size = 3, .sharding = "zero2", .dora = true},
        MergeCase{.name = "offloads", .world_size = 2, .offloads = true}),
    [](const auto& info) { return info.param.name; });

// Merged in bfloat16, a weight is rounded: tokens may be others. The weights come back all the
// same.
TEST(MergedAdaptersInBfloat16, LeaveTheWeightsAsTheyWere) {
  for (const int world_size : {1, 2})
    completions_of({.name = "", .world_size = world_size, .dtype = "bfloat16"}, true);
}

}  // namespace
}  // namespace tessera
