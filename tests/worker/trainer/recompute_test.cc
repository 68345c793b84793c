// What gradient checkpointing keeps, and that it changes nothing else.
#include "worker/parallel/recompute.h"

#include "tests/worker/trainer/tiny_step.h"

namespace tessera::testing {
namespace {

// Before any tensor of the process.
const MemoryLedger& ledger = MemoryLedger::install();

constexpr double kRounding = 3e-5;  // of sums in another order, in float32

struct Case {
  const char* name;
  double tolerance;
  void (*edit)(TinyJob& job);
};

// How a block may run: as one function, or through autograd for one reason or another.
const Case kCases[] = {
    {"OneFunction", kRounding, [](TinyJob&) {}},
    {"Windows", kRounding, [](TinyJob& job) { job.config.windows = {0, 4, 4}; }},
    {"Bfloat", 0, [](TinyJob& job) { job.spec.mutable_model()->set_dtype("bfloat16"); }},
    {"Experts", kRounding, [](TinyJob& job) { job.config = tiny_mixture(); }},
    {"BfloatExperts", 0,
     [](TinyJob& job) {
       job.config = tiny_mixture();
       job.spec.mutable_model()->set_dtype("bfloat16");
     }},
    {"AttentionDropout", 0, [](TinyJob& job) { job.config.attention_dropout = 0.3; }},
    {"HiddenDropout", 0, [](TinyJob& job) { job.spec.mutable_model()->set_hidden_dropout(0.2); }}};

class RecomputePolicies : public ::testing::TestWithParam<std::tuple<Case, int>> {
 protected:
  TinyJob job(bool checkpointing, const char* policy, int every) const {
    TinyJob made;
    std::get<0>(GetParam()).edit(made);
    made.world_size = std::get<1>(GetParam());
    v1::Memory& memory = *made.spec.mutable_memory();
    memory.set_gradient_checkpointing(checkpointing);
    memory.set_gradient_checkpointing_policy(policy);
    memory.set_gradient_checkpointing_every(every);
    return made;
  }
};

TEST_P(RecomputePolicies, LeaveLossesAndGradientsAsTheyAre) {
  const double tolerance = std::get<0>(GetParam()).tolerance;
  const TinyResult plain = run_tiny(job(false, "attention", 1));
  for (const char* policy : {"attention", "full"}) {
    for (const int every : {1, 2, 3}) {
      SCOPED_TRACE(std::string(policy) + ", every " + std::to_string(every));
      expect_same(run_tiny(job(true, policy, every)), plain, tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, RecomputePolicies,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Values(1, 2)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  ("On" + std::to_string(std::get<1>(info.param)));
                         });

int64_t activations_after_forward(bool bfloat, bool checkpointing, const char* policy, int every) {
  TinyJob job;
  job.lengths = {64, 64};
  job.num_microbatches = 1;
  if (bfloat) job.spec.mutable_model()->set_dtype("bfloat16");
  v1::Memory& memory = *job.spec.mutable_memory();
  memory.set_gradient_checkpointing(checkpointing);
  memory.set_gradient_checkpointing_policy(policy);
  memory.set_gradient_checkpointing_every(every);
  const auto snapshot = run_tiny(job).after_forward;
  return snapshot.current_by_owner[static_cast<size_t>(Owner::kActivations)];
}

// A block's input is 128 x 24 values; what its 3 heads of width 10 attended to 128 x 30, and a
// float32 log-sum-exp each.
TEST(Recompute, KeepsWhatItsPolicySays) {
  for (const bool bfloat : {false, true}) {
    const int64_t width = bfloat ? 2 : 4;
    const auto kept = [&](const char* policy, int every) {
      return activations_after_forward(bfloat, true, policy, every);
    };
    const int64_t full = kept("full", 1), attention = kept("attention", 1);
    EXPECT_EQ(attention - full, 3 * 128 * (30 * width + 3 * 4));
    // Batch and rotary angles [128, 5] twice; the inputs of three blocks, and the output.
    const int64_t batch = 128 * 5 * 8, angles = 2 * 128 * 5 * width;
    EXPECT_EQ(full, batch + angles + 4 * 128 * 24 * width);
    const int64_t none = activations_after_forward(bfloat, false, "full", 1);
    EXPECT_GT(kept("full", 2), full);
    EXPECT_GT(none, kept("full", 2));
  }
}

}  // namespace
}  // namespace tessera::testing
