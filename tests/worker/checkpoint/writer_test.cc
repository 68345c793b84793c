// Saves that run beside training: what they hold, how ranks agree on them, and how they fail.
#include "worker/checkpoint/writer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <future>

#include "tests/worker/checkpoint/fixture.h"
#include "worker/errors.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::Backend;
using testing::example_shards;
using testing::kJob;
using testing::names_in;
using testing::run_ranks;
using testing::state_at;
using testing::TempDir;

int64_t checkpoint_bytes() {
  return MemoryLedger::install()
      .snapshot()
      .current_by_owner[static_cast<size_t>(Owner::kCheckpoint)];
}

TEST(Snapshot, HoldsTheValuesOfItsMoment) {
  MemoryLedger::install();
  constexpr int64_t kNumel = 10'000'000;  // three parts
  std::vector<FlatShard> shards{{"a", at::arange(kNumel, at::kFloat), kNumel},
                                {"b", at::full({3}, 7.f), 3}};
  const at::Tensor expected = shards[0].data.clone();
  Snapshot snapshot(shards);
  std::promise<void> reading, go_on;
  at::Tensor seen = at::full({kNumel}, -1.f);
  at::Tensor last;
  std::thread reader([&] {
    snapshot.read([&](size_t shard, int64_t begin, const at::Tensor& part) {
      if (shard == 0 && begin == 0) {
        reading.set_value();
        go_on.get_future().wait();
      }
      if (shard == 0) seen.narrow(0, begin, part.numel()).copy_(part);
      if (shard == 1) last = part.clone();
    });
  });
  reading.get_future().wait();
  auto detached = std::async(std::launch::async, [&] { return snapshot.detach(); });
  go_on.set_value();  // detach() waits for the part that is being read
  const int64_t copied = detached.get();
  EXPECT_LE(copied, (kNumel + 3) * 4);
  EXPECT_EQ(snapshot.detach(), 0);
  shards[0].data.fill_(-5);
  shards[1].data.fill_(-5);
  reader.join();
  EXPECT_TRUE(at::equal(seen, expected));
  EXPECT_TRUE(at::equal(last, at::full({3}, 7.f)));
  EXPECT_EQ(checkpoint_bytes(), 0);  // copies go as they are read
}

TEST(Snapshot, ACopyIsChargedToItsOwner) {
  MemoryLedger::install();
  const std::vector<FlatShard> shards{{"a", at::arange(1000, at::kFloat), 1000}};
  Snapshot snapshot(shards);
  EXPECT_EQ(checkpoint_bytes(), 0);
  EXPECT_EQ(snapshot.detach(), 4000);
  EXPECT_EQ(checkpoint_bytes(), 4000);
}

// There is no room for the copy: the reader goes on all the same, as values have not changed.
TEST(Snapshot, LetsTheReaderGoOnWhereThereIsNoRoomForACopy) {
  MemoryLedger& ledger = MemoryLedger::install();
  const at::Tensor values = at::arange(10'000'000, at::kFloat);
  Snapshot snapshot({{"a", values, values.numel()}});
  ledger.set_device_limit(ledger.snapshot().current_bytes + 1000);
  EXPECT_THROW(snapshot.detach(), MemoryError);
  ledger.set_device_limit(0);
  int64_t num_seen = 0;
  snapshot.read([&](size_t, int64_t, const at::Tensor& part) { num_seen += part.numel(); });
  EXPECT_EQ(num_seen, values.numel());
}

// One step of training as the writer sees it: ranks exchange their progress, then weights change.
void step(CheckpointWriter& writer, Collectives& ranks, const std::vector<FlatShard>& shards) {
  const auto mine = writer.progress();
  at::Tensor sum = at::tensor({mine.done, mine.failed}, at::kDouble);
  ranks.all_reduce_sum(sum);
  const auto* values = sum.const_data_ptr<double>();
  writer.agree({.done = values[0], .failed = values[1]});
  writer.before_update();
  for (const FlatShard& shard : shards) shard.data.add_(1);
}

TEST(CheckpointWriter, IsPublishedWhileStepsGoOn) {
  TempDir directory;
  for (const int world_size : {1, 3}) {
    std::atomic<int> num_saved = 0;
    run_ranks(Backend::kThreads, world_size, [&](Collectives& ranks) {
      CheckpointWriter writer({.output_dir = directory.path(),
                               .on_saved =
                                   [&](const SavedCheckpoint& saved) {
                                     EXPECT_EQ(saved.step, 4);
                                     EXPECT_GE(saved.seconds, saved.stall_seconds);
                                     ++num_saved;
                                   }},
                              ranks);
      const auto shards = example_shards(ranks.rank(), world_size, 4);
      writer.begin(state_at(4), shards);
      at::Tensor published = at::full({1}, 0, at::kLong);
      while (published.const_data_ptr<int64_t>()[0] == 0) {
        step(writer, ranks, shards);
        published.fill_(ranks.rank() == 0 ? num_saved.load() : 0);
        ranks.all_reduce_sum(published);
      }
      writer.finish();
    });
    EXPECT_EQ(num_saved, 1);
    EXPECT_THAT(names_in(directory.path()), ::testing::ElementsAre("checkpoint-4"));
    auto loaded = example_shards(0, 1, 0);
    testing::load(directory.path() / "checkpoint-4", loaded);
    const auto expected = example_shards(0, 1, 4);
    for (size_t i = 0; i < loaded.size(); ++i)
      EXPECT_TRUE(at::equal(loaded[i].data, expected[i].data));
  }
}

TEST(CheckpointWriter, ASecondSaveWaitsForTheFirst) {
  TempDir directory;
  run_ranks(Backend::kThreads, 2, [&](Collectives& ranks) {
    CheckpointWriter writer({.output_dir = directory.path()}, ranks);
    for (const int step : {1, 2, 3})
      writer.begin(state_at(step), example_shards(ranks.rank(), 2, step));
    writer.finish();
    writer.finish();  // nothing to do
  });
  EXPECT_THAT(names_in(directory.path()),
              ::testing::ElementsAre("checkpoint-1", "checkpoint-2", "checkpoint-3"));
}

TEST(CheckpointWriter, AnErrorShowsAtAStepOnEveryRank) {
  TempDir directory;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::atomic<int> failed = 0;
  run_ranks(Backend::kThreads, 3, [&](Collectives& ranks) {
    CheckpointWriter writer({.output_dir = directory.path()}, ranks);
    // Rank 1 alone has more than fits.
    const std::vector<FlatShard> large{{"unit/parameter", at::full({1 << 20}, 1.f), 1 << 20}};
    const auto shards = ranks.rank() == 1 ? large : example_shards(ranks.rank(), 3, 2);
    writer.begin(state_at(1), shards);
    try {
      for (;;) step(writer, ranks, shards);
    } catch (const std::system_error& error) {
      EXPECT_EQ(error.code().value(), EFBIG);
      EXPECT_THAT(
          error.what(),
          ::testing::HasSubstr(ranks.rank() == 1 ? "rank-00001.safetensors (4194" : "on rank 1"));
      ++failed;
    }
    writer.finish();  // that save is over
    EXPECT_EQ(writer.progress().failed, 0);
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(failed, 3);
  EXPECT_THAT(names_in(directory.path()), ::testing::IsEmpty());
}

TEST(CheckpointWriter, MayBeForbiddenToPublish) {
  TempDir directory;
  auto single = make_single_collectives();
  CheckpointWriter writer({.output_dir = directory.path(),
                           .before_publish = [] { throw NetworkError("the lease ran out"); }},
                          *single);
  writer.begin(state_at(1), example_shards(0, 1, 1));
  EXPECT_THROW(writer.finish(), NetworkError);
  delete_leftovers(directory.path());
  EXPECT_THAT(names_in(directory.path()), ::testing::IsEmpty());
}

TEST(CheckpointWriter, GivesUpWhereItGoesAway) {
  TempDir directory;
  auto single = make_single_collectives();
  {
    CheckpointWriter writer({.output_dir = directory.path()}, *single);
    writer.begin(state_at(1), example_shards(0, 1, 1));
  }
  EXPECT_FALSE(find_latest_checkpoint(directory.path(), kJob));
}

}  // namespace
}  // namespace tessera
