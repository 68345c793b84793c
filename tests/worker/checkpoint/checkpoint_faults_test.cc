// Disks that are full and processes that are killed: the latest complete checkpoint stays loadable.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <thread>

#include "tests/worker/checkpoint/fixture.h"

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

// Saves steps 1, 2, 3, ... and writes one byte to `pipe` when the first is complete; until killed.
[[noreturn]] void save_for_ever(const fs::path& directory, int pipe) {
  auto single = make_single_collectives();
  for (int step = 1;; ++step) {
    save_checkpoint(directory, state_at(step), example_shards(0, 1, step), 2, *single);
    if (step == 1 && ::write(pipe, "x", 1) != 1) ::_exit(1);
  }
}

TEST(CheckpointFaults, KilledAtAnyMomentTheLatestIsComplete) {
  std::mt19937 random(17);
  TempDir directory;
  for (int round = 0; round < 25; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) save_for_ever(directory.path(), pipe[1]);
    char byte = 0;
    ASSERT_EQ(::read(pipe[0], &byte, 1), 1);
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % 20'000));  // where the kill falls
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ::close(pipe[0]);
    ::close(pipe[1]);

    const auto latest = find_latest_checkpoint(directory.path(), kJob);
    ASSERT_TRUE(latest);
    auto shards = example_shards(0, 1, 0);
    const int step = testing::load(latest->path, shards).step();
    EXPECT_EQ(latest->path.filename(), "checkpoint-" + std::to_string(step));
    const auto expected = example_shards(0, 1, step);
    for (size_t i = 0; i < shards.size(); ++i)
      ASSERT_TRUE(at::equal(shards[i].data, expected[i].data));
  }
  delete_leftovers(directory.path());
  for (const std::string& name : names_in(directory.path()))
    EXPECT_TRUE(name.starts_with("checkpoint-")) << name;
}

// Big enough not to fit where the limit below is.
std::vector<FlatShard> large_shards() {
  return {{"unit/parameter", at::full({1 << 20}, 1.f), 1 << 20}};
}

void expect_save_fails_on_all(const fs::path& directory, int error) {
  std::atomic<int> failed = 0;
  run_ranks(Backend::kThreads, 3, [&](Collectives& ranks) {
    // Rank 1 alone has more than fits.
    const auto shards = ranks.rank() == 1 ? large_shards() : example_shards(ranks.rank(), 3, 2);
    try {
      save_checkpoint(directory, state_at(2), shards, 0, ranks);
    } catch (const std::system_error& thrown) {
      EXPECT_EQ(thrown.code().value(), error) << thrown.what();
      EXPECT_THAT(thrown.what(),
                  ::testing::HasSubstr(ranks.rank() == 1 ? "rank-00001.safetensors" : "on rank 1"));
      ++failed;
    }
  });
  EXPECT_EQ(failed, 3);
}

TEST(CheckpointFaults, AFullDiskFailsOnEveryRankAndLeavesNothing) {
  TempDir directory;
  if (::mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  run_ranks(Backend::kThreads, 1, [&](Collectives& ranks) {
    save_checkpoint(directory.path(), state_at(1), example_shards(0, 1, 1), 0, ranks);
  });
  expect_save_fails_on_all(directory.path(), ENOSPC);
  EXPECT_THAT(names_in(directory.path()), ::testing::ElementsAre("checkpoint-1"));
  ASSERT_EQ(::umount(directory.path().c_str()), 0);
}

TEST(CheckpointFaults, AFileSizeLimitFailsOnEveryRankAndLeavesNothing) {
  TempDir directory;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  expect_save_fails_on_all(directory.path(), EFBIG);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(names_in(directory.path()), ::testing::IsEmpty());
}

TEST(CheckpointFaults, AnUnwritableDirectoryIsNamed) {
  TempDir directory;
  testing::write_file(directory.path() / "file", "");
  auto single = make_single_collectives();
  try {
    save_checkpoint(directory.path() / "file" / "out", state_at(1), example_shards(0, 1, 1), 0,
                    *single);
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("file/out"));
  }
}

}  // namespace
}  // namespace tessera
