// Offloaded activations: the same numbers, and less on the device.
#include "worker/memory/offload.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/worker/trainer/tiny_step.h"
#include "worker/errors.h"

namespace tessera::testing {
namespace {

// Before any tensor of the process.
const MemoryLedger& ledger = MemoryLedger::install();

struct Case {
  const char* name;
  void (*edit)(TinyJob& job);
};

const Case kCases[] = {
    {"Plain", [](TinyJob&) {}},
    {"RecomputeAttention",
     [](TinyJob& job) { job.spec.mutable_memory()->set_gradient_checkpointing(true); }},
    {"RecomputeFull",
     [](TinyJob& job) {
       job.spec.mutable_memory()->set_gradient_checkpointing(true);
       job.spec.mutable_memory()->set_gradient_checkpointing_policy("full");
     }},
    {"RecomputeEverySecond",
     [](TinyJob& job) {
       job.spec.mutable_memory()->set_gradient_checkpointing(true);
       job.spec.mutable_memory()->set_gradient_checkpointing_every(2);
     }},
    {"Bfloat", [](TinyJob& job) { job.spec.mutable_model()->set_dtype("bfloat16"); }},
    {"BfloatRecompute",
     [](TinyJob& job) {
       job.spec.mutable_model()->set_dtype("bfloat16");
       job.spec.mutable_memory()->set_gradient_checkpointing(true);
     }},
    {"KeepsWeightsAfterForward",
     [](TinyJob& job) { job.spec.mutable_memory()->set_reshard_after_forward(false); }},
    {"Tied", [](TinyJob& job) { job.config.tie_word_embeddings = true; }},
    {"Experts", [](TinyJob& job) { job.config = tiny_mixture(); }},
    {"ExpertsRecompute",
     [](TinyJob& job) {
       job.config = tiny_mixture();
       job.spec.mutable_memory()->set_gradient_checkpointing(true);
     }},
    {"Dropout",
     [](TinyJob& job) {
       job.config.attention_dropout = 0.3;
       job.spec.mutable_model()->set_hidden_dropout(0.2);
     }},
    {"TilesRecomputeAndDropoutOfExpertsInBfloat",
     [](TinyJob& job) {
       job.config = tiny_mixture();
       job.config.attention_dropout = 0.3;
       job.spec.mutable_model()->set_dtype("bfloat16");
       job.spec.mutable_model()->set_hidden_dropout(0.2);
       v1::Memory& memory = *job.spec.mutable_memory();
       memory.set_gradient_checkpointing(true);
       memory.set_gradient_checkpointing_every(2);
       memory.set_mlp_tile_tokens(16);
     }},
    {"TilesRecomputeAndWindowsOfATiedModel",
     [](TinyJob& job) {
       job.config.tie_word_embeddings = true;
       job.config.windows = {0, 4, 4};
       v1::Memory& memory = *job.spec.mutable_memory();
       memory.set_gradient_checkpointing(true);
       memory.set_gradient_checkpointing_policy("full");
       memory.set_gradient_checkpointing_every(2);
       memory.set_mlp_tile_tokens(16);
     }},
    {"HeadMakesItsGradientsInBackward", [](TinyJob& job) { job.known_gradient = false; }}};

class Offload : public ::testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(Offload, ChangesNoBit) {
  TinyJob job;
  std::get<0>(GetParam()).edit(job);
  job.world_size = std::get<1>(GetParam());
  const TinyResult plain = run_tiny(job);
  v1::Memory& memory = *job.spec.mutable_memory();
  memory.set_activation_offloading(true);
  for (const char* target : {"host", "disk"}) {
    memory.set_activation_offloading_target(target);
    for (const int64_t min_bytes : {0, 1024}) {
      SCOPED_TRACE(std::string(target) + ", from " + std::to_string(min_bytes) + " bytes");
      memory.set_activation_offloading_min_bytes(min_bytes);
      expect_same(run_tiny(job,
                           [&](const TrainableModel& model) {
                             EXPECT_GT(model.offload->moved_bytes(), 0);
                             EXPECT_EQ(model.offload->offloaded_bytes(), 0);
                           }),
                  plain, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, Offload,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Values(1, 2)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  ("On" + std::to_string(std::get<1>(info.param)));
                         });

struct Peak {
  int64_t activations;  // on the device
  int64_t host;
};

Peak peak_of(TinyJob job, int64_t num_layers) {
  job.config.num_layers = num_layers;
  job.lengths = {128, 128};
  job.num_microbatches = 1;
  MemoryLedger::install().reset_peak();
  const int64_t host_before = ledger.snapshot(Space::kHost).current_bytes;
  run_tiny(job);
  const auto host = ledger.snapshot(Space::kHost);
  EXPECT_EQ(host.current_bytes, host_before);
  return {ledger.snapshot().peak_by_owner[static_cast<size_t>(Owner::kActivations)],
          host.peak_bytes - host_before};
}

// The device holds the activations of one block, however many there are.
TEST(OffloadMemory, PeaksWithOneBlock) {
  for (const bool recompute : {false, true}) {
    TinyJob job;
    job.spec.mutable_memory()->set_gradient_checkpointing(recompute);
    job.spec.mutable_memory()->set_activation_offloading(true);
    job.spec.mutable_memory()->set_activation_offloading_min_bytes(0);
    const Peak three = peak_of(job, 3), six = peak_of(job, 6);
    EXPECT_EQ(three.activations, six.activations);
    EXPECT_GT(six.host, 0);
    job.spec.mutable_memory()->set_activation_offloading(false);
    EXPECT_LT(six.activations, peak_of(job, 3).activations);
  }
}

TEST(OffloadMemory, TakesNoHostMemoryForADisk) {
  TinyJob job;
  job.spec.mutable_memory()->set_activation_offloading(true);
  job.spec.mutable_memory()->set_activation_offloading_target("disk");
  EXPECT_EQ(peak_of(job, 3).host, 0);
}

// What is beyond the bound stays.
TEST(OffloadMemory, KeepsToItsBound) {
  TinyJob job;
  v1::Memory& memory = *job.spec.mutable_memory();
  memory.set_activation_offloading(true);
  memory.set_activation_offloading_min_bytes(0);
  const int64_t all = peak_of(job, 6).activations;
  memory.set_activation_offloading_max_bytes(100'000);
  const int64_t bounded = peak_of(job, 6).activations;
  memory.set_activation_offloading_max_bytes(1);
  const int64_t none = peak_of(job, 6).activations;
  EXPECT_GT(bounded, all);
  EXPECT_GT(none, bounded);
  memory.set_activation_offloading(false);
  EXPECT_EQ(none, peak_of(job, 6).activations);
}

TEST(OffloadDisk, LeavesNoFile) {
  const std::filesystem::path directory =
      std::filesystem::path(::testing::TempDir()) / "offload_test_is_made";
  TinyJob job;
  v1::Memory& memory = *job.spec.mutable_memory();
  memory.set_activation_offloading(true);
  memory.set_activation_offloading_target("disk");
  memory.set_activation_offloading_dir(directory.string());
  run_tiny(job);
  EXPECT_TRUE(std::filesystem::is_directory(directory));
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::filesystem::remove(directory);
}

TEST(OffloadDisk, SaysWhereItCannotMakeItsFile) {
  TinyJob job;
  v1::Memory& memory = *job.spec.mutable_memory();
  memory.set_activation_offloading(true);
  memory.set_activation_offloading_target("disk");
  memory.set_activation_offloading_dir("/dev/null/here");
  try {
    run_tiny(job);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), "memory.activation_offloading_dir");
    EXPECT_THAT(error.what(), ::testing::HasSubstr("/dev/null/here"));
  }
}

}  // namespace
}  // namespace tessera::testing
