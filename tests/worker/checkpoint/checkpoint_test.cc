#include "worker/checkpoint/checkpoint.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <map>
#include <vector>

#include "tests/worker/checkpoint/fixture.h"
#include "worker/errors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::Backend;
using testing::example_shards;
using testing::kJob;
using testing::names_in;
using testing::run_ranks;
using testing::save_checkpoint;
using testing::state_at;
using testing::TempDir;

void save(const fs::path& directory, int world_size, int step, int total_limit = 0) {
  run_ranks(Backend::kThreads, world_size, [&](Collectives& ranks) {
    save_checkpoint(directory, state_at(step), example_shards(ranks.rank(), world_size, step),
                    total_limit, ranks);
  });
}

// Loads on every rank and compares each element.
void expect_loads(const fs::path& checkpoint, int world_size, int step) {
  run_ranks(Backend::kThreads, world_size, [&](Collectives& ranks) {
    const auto expected = example_shards(ranks.rank(), world_size, step);
    std::vector<FlatShard> loaded;
    for (const FlatShard& shard : expected) {
      loaded.push_back({shard.name, at::full({shard.data.numel()}, -1.f), shard.numel});
    }
    const v1::CheckpointState state = testing::load(checkpoint, loaded, ranks.rank());
    EXPECT_EQ(state.step(), step);
    EXPECT_EQ(state.row(), int64_t{1} << 40);
    EXPECT_EQ(state.epoch(), 2);
    for (size_t i = 0; i < loaded.size(); ++i) {
      EXPECT_TRUE(at::equal(loaded[i].data, expected[i].data))
          << loaded[i].name << " on rank " << ranks.rank() << " of " << world_size;
    }
  });
}

TEST(Checkpoint, LoadsAtAnyWorldSizeBitExactly) {
  for (int saved = 1; saved <= 4; ++saved) {
    TempDir directory;
    save(directory.path(), saved, 7);
    const auto latest = find_latest_checkpoint(directory.path(), kJob);
    ASSERT_TRUE(latest);
    EXPECT_EQ(latest->path.filename(), "checkpoint-7");
    for (int loaded : {1, 2, 3, 5, 8}) expect_loads(latest->path, loaded, 7);
  }
}

// Where shards of a vector of ten elements begin, and where the last ends, by number of ranks.
const std::map<int, std::vector<int64_t>> kUneven = {
    {1, {0, 10}}, {2, {0, 0, 10}}, {3, {0, 7, 7, 10}}, {4, {0, 1, 4, 9, 10}}};

std::vector<FlatShard> uneven_shards(int rank, int world_size, bool filled) {
  const std::vector<int64_t>& begins = kUneven.at(world_size);
  const int64_t begin = begins[rank], end = begins[rank + 1];
  const at::Tensor data =
      filled ? at::arange(begin, end, at::kFloat) : at::full({end - begin}, -1.f);
  return {{"uneven", data, 10, begin}};
}

TEST(Checkpoint, LoadsShardsOfDifferentSizes) {
  for (const auto& [saved, unused] : kUneven) {
    TempDir directory;
    run_ranks(Backend::kThreads, saved, [&, saved = saved](Collectives& ranks) {
      save_checkpoint(directory.path(), state_at(3), uneven_shards(ranks.rank(), saved, true), 0,
                      ranks);
    });
    CheckpointReader(directory.path() / "checkpoint-3", "field").check_complete();
    for (const auto& [loaded, also_unused] : kUneven) {
      for (int rank = 0; rank < loaded; ++rank) {
        const auto expected = uneven_shards(rank, loaded, true);
        const auto found = uneven_shards(rank, loaded, false);
        testing::load(directory.path() / "checkpoint-3", found, rank);
        EXPECT_TRUE(at::equal(found[0].data, expected[0].data)) << saved << " to " << loaded;
      }
    }
  }
}

// Of different sizes, though they are padded: a load would not know where each begins.
TEST(Checkpoint, RefusesShardsThatDoNotFitTogether) {
  TempDir directory;
  run_ranks(Backend::kThreads, 2, [&](Collectives& ranks) {
    const at::Tensor data = at::full({ranks.rank() == 0 ? 5 : 8}, 1.f);
    save_checkpoint(directory.path(), state_at(3), {{"even", data, 10}}, 0, ranks);
  });
  CheckpointReader reader(directory.path() / "checkpoint-3", "field");
  EXPECT_THROW(reader.check_complete(), UserError);
}

TEST(Checkpoint, ReportsTheBytesOnDisk) {
  TempDir directory;
  std::atomic<int> reported = 0;
  run_ranks(Backend::kThreads, 3, [&](Collectives& ranks) {
    const auto expect_size = [&](const SavedCheckpoint& saved) {
      int64_t bytes = 0;
      for (const auto& file : fs::directory_iterator(saved.path))
        bytes += static_cast<int64_t>(file.file_size());
      EXPECT_EQ(saved.bytes, bytes);
      ++reported;
    };
    CheckpointWriter writer({.output_dir = directory.path(), .on_saved = expect_size}, ranks);
    writer.begin(state_at(1), example_shards(ranks.rank(), 3, 1));
    writer.finish();
  });
  EXPECT_EQ(reported, 1);
  EXPECT_THAT(names_in(directory.path() / "checkpoint-1"),
              ::testing::ElementsAre("rank-00000.safetensors", "rank-00001.safetensors",
                                     "rank-00002.safetensors", "state.json"));
}

TEST(Checkpoint, KeepsTheNewest) {
  TempDir directory;
  for (int step : {8, 9, 10, 11}) save(directory.path(), 2, step, 2);
  EXPECT_THAT(names_in(directory.path()), ::testing::ElementsAre("checkpoint-10", "checkpoint-11"));
  expect_loads(find_latest_checkpoint(directory.path(), kJob)->path, 2, 11);
}

TEST(Checkpoint, OtherJobsAreLeftAlone) {
  TempDir directory;
  save(directory.path(), 1, 50);
  auto single = make_single_collectives();
  for (int step : {10, 20, 30}) {
    save_checkpoint(directory.path(), state_at(step, "job-2"), example_shards(0, 1, step), 1,
                    *single);
  }
  EXPECT_THAT(names_in(directory.path()), ::testing::ElementsAre("checkpoint-30", "checkpoint-50"));
  EXPECT_EQ(find_latest_checkpoint(directory.path(), "job-2")->path.filename(), "checkpoint-30");
  EXPECT_EQ(find_latest_checkpoint(directory.path(), kJob)->path.filename(), "checkpoint-50");
  EXPECT_FALSE(find_latest_checkpoint(directory.path(), "job-3"));
}

TEST(Checkpoint, ASecondOneOfTheSameStepReplacesTheFirst) {
  TempDir directory;
  save(directory.path(), 3, 5);
  save(directory.path(), 1, 5);
  EXPECT_THAT(names_in(directory.path()), ::testing::ElementsAre("checkpoint-5"));
  EXPECT_THAT(names_in(directory.path() / "checkpoint-5"),
              ::testing::ElementsAre("rank-00000.safetensors", "state.json"));
  expect_loads(directory.path() / "checkpoint-5", 2, 5);
}

TEST(Checkpoint, WhatIsNotCompleteIsNotFound) {
  TempDir directory;
  EXPECT_FALSE(find_latest_checkpoint(directory.path(), kJob));
  EXPECT_FALSE(find_latest_checkpoint(directory.path() / "missing", kJob));
  save(directory.path(), 1, 3);
  fs::create_directory(directory.path() / "checkpoint-9");  // no state.json
  fs::create_directory(directory.path() / "checkpoint-12x");
  testing::write_file(directory.path() / "checkpoint-12x" / "state.json", "{}");
  EXPECT_EQ(find_latest_checkpoint(directory.path(), kJob)->path.filename(), "checkpoint-3");
}

TEST(Checkpoint, LeftoversOfACrashAreDeletedAndOthersAreNot) {
  TempDir directory;
  save(directory.path(), 1, 3);
  fs::create_directory(directory.path() / ".checkpoint-4.tmp");
  testing::write_file(directory.path() / ".checkpoint-4.tmp" / "rank-00000.safetensors", "half");
  testing::write_file(directory.path() / ".mine.tmp", "mine");
  delete_leftovers(directory.path());
  EXPECT_THAT(names_in(directory.path()), ::testing::ElementsAre(".mine.tmp", "checkpoint-3"));
}

TEST(Checkpoint, IsFoundByItsPathOrTheDirectoryAround) {
  TempDir directory;
  save(directory.path(), 2, 30);
  auto single = make_single_collectives();
  save_checkpoint(directory.path(), state_at(40, "job-2"), example_shards(0, 1, 40), 0, *single);
  EXPECT_EQ(find_checkpoint(directory.path(), "f").step, 40);
  EXPECT_EQ(find_checkpoint(directory.path() / "checkpoint-30", "f").step, 30);
  fs::remove(directory.path() / "checkpoint-30" / "state.json");
  for (const char* name : {"checkpoint-30", "checkpoint-50"}) {
    try {
      find_checkpoint(directory.path() / name, "training.resume_from_checkpoint");
      FAIL();
    } catch (const UserError& error) {
      EXPECT_EQ(error.field(), "training.resume_from_checkpoint");
      EXPECT_THAT(error.what(), ::testing::HasSubstr("neither is nor holds a checkpoint"));
    }
  }
}

TEST(Checkpoint, IsCheckedWithoutBeingLoaded) {
  TempDir directory;
  save(directory.path(), 3, 1);
  const fs::path checkpoint = directory.path() / "checkpoint-1";
  CheckpointReader(checkpoint, "f").check_complete();
  fs::copy_file(checkpoint / "rank-00000.safetensors", checkpoint / "rank-00002.safetensors",
                fs::copy_options::overwrite_existing);
  CheckpointReader(checkpoint, "f").check_complete();
  fs::remove(checkpoint / "rank-00002.safetensors");
  EXPECT_THROW(CheckpointReader(checkpoint, "f").check_complete(), UserError);
}

std::string load_error(const fs::path& checkpoint, std::vector<FlatShard> shards) {
  try {
    testing::load(checkpoint, shards);
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), "training.output_dir");
    return error.what();
  }
  return "";
}

TEST(Checkpoint, AnotherModelIsRefused) {
  TempDir directory;
  save(directory.path(), 2, 1);
  const fs::path checkpoint = directory.path() / "checkpoint-1";
  auto shards = example_shards(0, 1, 1);
  shards[1].numel += 1;
  EXPECT_THAT(load_error(checkpoint, shards), ::testing::HasSubstr("the model has"));
  shards[0].name = "model.layers.77/parameter";
  EXPECT_THAT(load_error(checkpoint, shards),
              ::testing::HasSubstr("it holds no model.layers.77/parameter"));
}

TEST(Checkpoint, DamageIsReported) {
  TempDir directory;
  save(directory.path(), 2, 1);
  const fs::path checkpoint = directory.path() / "checkpoint-1";
  const auto shards = example_shards(0, 1, 1);
  fs::resize_file(checkpoint / "rank-00001.safetensors", 1000);
  EXPECT_THAT(load_error(checkpoint, shards),
              ::testing::HasSubstr("rank-00001.safetensors: it is truncated"));
  fs::remove(checkpoint / "rank-00001.safetensors");
  EXPECT_THAT(load_error(checkpoint, shards), ::testing::HasSubstr("No such file"));
  testing::write_file(checkpoint / "state.json", "{\"step\": \"x\"}");
  EXPECT_THAT(load_error(checkpoint, shards),
              ::testing::HasSubstr("is not the state of a checkpoint"));
}

}  // namespace
}  // namespace tessera
