// What an engine holds, awake and asleep, and that it takes the same without data.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "tests/worker/generate/tiny_engine.h"
#include "worker/kernels/meta_operators.h"
#include "worker/kernels/stand_in.h"
#include "worker/memory/cpu_scratch.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

using testing::Backend;
using testing::EngineCase;
using testing::EngineRank;
using testing::generate_alone;
using testing::run_ranks;
using testing::sampled_requests;
using testing::tokens_of;

// Before any tensor of the process.
MemoryLedger& ledger = MemoryLedger::install();
MemoryLedger& meta = MemoryLedger::install_meta();

int64_t held(Owner owner, Space space = Space::kDevice) {
  return ledger.snapshot(space).current_by_owner[static_cast<size_t>(owner)];
}

// Transitions of an engine, as it reports them.
struct Log {
  std::vector<EngineTransition> transitions;
  EngineCase with(EngineCase c) {
    c.options.on_transition = [this](const EngineTransition& t) { transitions.push_back(t); };
    return c;
  }
};

TEST(EngineSleep, HoldsNothingBeforeItWakesAndAfterItSleeps) {
  Log log;
  const EngineCase c = log.with({});
  const auto group = make_single_collectives();
  EngineRank rank(c, *group);
  const int64_t before = ledger.snapshot().current_bytes;
  EXPECT_EQ(held(Owner::kKvCache), 0);
  rank.engine->generate(sampled_requests(3));
  EXPECT_EQ(held(Owner::kKvCache), 200 * kv_page_bytes(c.config, at::kFloat));
  rank.engine->fall_asleep(SleepLevel::kDrop);
  EXPECT_EQ(ledger.snapshot().current_bytes, before);
  ASSERT_EQ(log.transitions.size(), 2u);
  EXPECT_TRUE(log.transitions[0].is_wake);
  EXPECT_FALSE(log.transitions[1].is_wake);
  for (const EngineTransition& transition : log.transitions) {
    EXPECT_EQ(transition.kv_cache_bytes, 200 * kv_page_bytes(c.config, at::kFloat));
    EXPECT_EQ(transition.host_bytes, 0);
    EXPECT_GE(transition.seconds, 0);
  }
}

// Unfinished sequences go on as if nothing had been.
TEST(EngineSleep, SequencesGoOnAfterIt) {
  const auto requests = sampled_requests(6, 2);
  const auto expected = tokens_of(generate_alone({}, requests));
  for (const SleepLevel level : {SleepLevel::kOffload, SleepLevel::kDrop}) {
    Log log;
    const EngineCase c = log.with({});
    const auto group = make_single_collectives();
    EngineRank rank(c, *group);
    for (const GenerationRequest& request : requests) rank.engine->submit(request);
    for (int pass = 0; rank.engine->step(); ++pass) {
      if (pass != 3 && pass != 7) continue;
      rank.engine->fall_asleep(level);
      const EngineTransition& last = log.transitions.back();
      EXPECT_EQ(held(Owner::kKvCache), 0);
      EXPECT_EQ(held(Owner::kKvCache, Space::kHost), last.host_bytes);
      EXPECT_EQ(last.host_bytes > 0, level == SleepLevel::kOffload);
      EXPECT_LT(last.host_bytes, last.kv_cache_bytes);
    }
    EXPECT_EQ(held(Owner::kKvCache, Space::kHost), 0);
    EXPECT_EQ(tokens_of(rank.engine->take_finished()), expected);
    EXPECT_EQ(log.transitions.size(), 5u);
    EXPECT_EQ(rank.engine->counts().preemptions, 0);
  }
}

// Of gathered weights, the most at once over two ranks that generate together.
int64_t peak_of_gathered(WeightMode mode, bool asleep_after, int64_t* block_bytes) {
  std::atomic<int64_t> most_of_block = 0;
  EngineCase c;
  c.options.weights = mode;
  int64_t peak = 0;
  ledger.reset_peak();
  run_ranks(Backend::kThreads, 2, [&](Collectives& group) {
    at::set_num_threads(1);
    EngineRank rank(c, group);
    for (const auto& unit : rank.trainable.units)
      most_of_block = std::max<int64_t>(most_of_block, unit->gathered_bytes());
    group.barrier();
    if (group.rank() == 0) ledger.reset_peak();
    group.barrier();
    rank.engine->generate(sampled_requests(4 - 3 * group.rank()));
    group.barrier();
    if (group.rank() == 0) {
      peak = ledger.snapshot().peak_by_owner[static_cast<size_t>(Owner::kCommunication)];
    }
    if (asleep_after) rank.engine->fall_asleep(SleepLevel::kDrop);
    group.barrier();
    if (asleep_after) EXPECT_EQ(held(Owner::kCommunication), 0);
    group.barrier();
  });
  *block_bytes = most_of_block;
  return peak;
}

TEST(EngineWeights, LayerwiseHoldsTwoBlocksAtMost) {
  int64_t block = 0;
  const int64_t layerwise = peak_of_gathered(WeightMode::kLayerwise, true, &block);
  EXPECT_GT(layerwise, 0);
  EXPECT_LE(layerwise, 2 * 2 * block + 64);  // of each rank; and what ranks agree by
  const int64_t whole = peak_of_gathered(WeightMode::kGather, true, &block);
  EXPECT_GT(whole, layerwise);
}

struct MetaCase {
  const char* name;
  WeightMode mode;
  const char* dtype = "float32";
  bool merges = false;  // adapters, which the model then has
};
class EngineOnMeta : public ::testing::TestWithParam<MetaCase> {};

// No token is a stop token, so that lengths do not depend on values.
TEST_P(EngineOnMeta, TakesWhatItTakesWithData) {
  at::set_num_threads(1);
  EngineCase c;
  c.spec.mutable_model()->set_dtype(GetParam().dtype);
  if (GetParam().merges) {
    c.spec.mutable_peft()->set_lora_r(3);
    spec::fill_defaults(c.spec);
    c.options.merges_adapters = true;
  }
  c.options.weights = GetParam().mode;
  c.options.num_pages = 40;
  c.options.limits = {.max_pass_tokens = 50, .max_running = 10};
  const auto group = make_single_collectives();
  const auto requests = sampled_requests(8, 3);
  const auto run = [&](MemoryLedger& of, at::Device device) {
    EngineRank rank(c, *group, device);
    const int64_t before = of.snapshot().current_bytes;
    of.reset_peak();
    const auto made = rank.engine->generate(requests);
    EXPECT_EQ(made.size(), 24u);
    const int64_t peak = of.snapshot().peak_bytes - before;
    rank.engine->fall_asleep(SleepLevel::kDrop);
    EXPECT_EQ(of.snapshot().current_bytes, before);
    return peak;
  };
  const int64_t real = run(ledger, at::kCPU);
  register_meta_operators();
  const StandInScope stand_in({.device = at::kCPU, .num_threads = 1});
  const CpuScratchScope scratch;
  EXPECT_EQ(run(meta, at::kMeta), real);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, EngineOnMeta,
    ::testing::Values(MetaCase{"gather", WeightMode::kGather},
                      MetaCase{"layerwise", WeightMode::kLayerwise},
                      MetaCase{"bfloat16", WeightMode::kGather, "bfloat16"},
                      MetaCase{"bfloat16_layerwise", WeightMode::kLayerwise, "bfloat16"},
                      MetaCase{"merged", WeightMode::kGather, "float32", true},
                      MetaCase{"bfloat16_merged", WeightMode::kLayerwise, "bfloat16", true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
