// The feed-forward part of blocks in tiles of tokens: the same numbers, and a peak that does not
// grow with the sequence.
#include "worker/model/tiled.h"

#include "tests/worker/trainer/tiny_step.h"

namespace tessera::testing {
namespace {

// Before any tensor of the process.
const MemoryLedger& ledger = MemoryLedger::install();

struct Case {
  const char* name;
  double tolerance;
  void (*edit)(TinyJob& job);
};

constexpr double kRounding = 1e-5;        // of sums in another order, in float32
constexpr double kBfloatRounding = 0.02;  // of gradients that are rounded tile by tile

const Case kCases[] = {
    {"Plain", kRounding, [](TinyJob&) {}},
    {"Recompute", kRounding,
     [](TinyJob& job) { job.spec.mutable_memory()->set_gradient_checkpointing(true); }},
    {"RecomputeFull", kRounding,
     [](TinyJob& job) {
       job.spec.mutable_memory()->set_gradient_checkpointing(true);
       job.spec.mutable_memory()->set_gradient_checkpointing_policy("full");
     }},
    {"Biases", kRounding,
     [](TinyJob& job) {
       job.config.mlp_bias = true;
       job.spec.mutable_memory()->set_gradient_checkpointing_every(2);
     }},
    {"Bfloat", kBfloatRounding,
     [](TinyJob& job) { job.spec.mutable_model()->set_dtype("bfloat16"); }},
    {"BfloatRecompute", kBfloatRounding,
     [](TinyJob& job) {
       job.spec.mutable_model()->set_dtype("bfloat16");
       job.spec.mutable_memory()->set_gradient_checkpointing(true);
     }},
    {"Experts", kRounding, [](TinyJob& job) { job.config = tiny_mixture(); }},
    {"ExpertsRecompute", kRounding,
     [](TinyJob& job) {
       job.config = tiny_mixture();
       job.spec.mutable_memory()->set_gradient_checkpointing(true);
     }},
    {"DropoutRecompute", kRounding,
     [](TinyJob& job) {
       job.config.attention_dropout = 0.3;
       job.spec.mutable_model()->set_hidden_dropout(0.2);
       job.spec.mutable_memory()->set_gradient_checkpointing(true);
     }},
    {"Offloading", kRounding,
     [](TinyJob& job) { job.spec.mutable_memory()->set_activation_offloading(true); }}};

class Tiles : public ::testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(Tiles, LeaveLossesAndGradientsAsTheyAre) {
  TinyJob job;
  std::get<0>(GetParam()).edit(job);
  job.world_size = std::get<1>(GetParam());
  const TinyResult plain = run_tiny(job);
  for (const int tile : {1, 16, 36}) {
    SCOPED_TRACE(tile);
    job.spec.mutable_memory()->set_mlp_tile_tokens(tile);
    expect_same(run_tiny(job), plain, std::get<0>(GetParam()).tolerance);
  }
}

// 37 tokens.
TEST_P(Tiles, ChangeNothingWhereOneHoldsAllTokens) {
  TinyJob job;
  std::get<0>(GetParam()).edit(job);
  job.world_size = std::get<1>(GetParam());
  const TinyResult plain = run_tiny(job);
  job.spec.mutable_memory()->set_mlp_tile_tokens(37);
  expect_same(run_tiny(job), plain, 0);
}

INSTANTIATE_TEST_SUITE_P(Jobs, Tiles,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Values(1, 2)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  ("On" + std::to_string(std::get<1>(info.param)));
                         });

// What a wider MLP adds to the peak of activations, with documents of 64 tokens.
int64_t cost_of_width(TinyJob job, int64_t num_documents) {
  job.lengths.assign(static_cast<size_t>(num_documents), 64);
  job.num_microbatches = 1;
  const auto peak = [&](int64_t width) {
    job.config.intermediate_size = width;
    MemoryLedger::install().reset_peak();
    run_tiny(job);
    return ledger.snapshot().peak_by_owner[static_cast<size_t>(Owner::kActivations)];
  };
  return peak(4000) - peak(2000);
}

TEST(TilesMemory, DoesNotGrowWithTheSequence) {
  for (const bool bfloat : {false, true}) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(std::to_string(bfloat) + std::to_string(recompute));
      TinyJob job;
      if (bfloat) job.spec.mutable_model()->set_dtype("bfloat16");
      job.spec.mutable_memory()->set_gradient_checkpointing(recompute);
      job.spec.mutable_memory()->set_mlp_tile_tokens(32);
      const int64_t tiled = cost_of_width(job, 2);
      EXPECT_EQ(cost_of_width(job, 8), tiled);
      job.spec.mutable_memory()->set_mlp_tile_tokens(0);
      EXPECT_GT(cost_of_width(job, 8), 2 * tiled);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
