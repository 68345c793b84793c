// What ranks tell of their exchanges: in the middle of one, and of the same one the same number.
#include "worker/parallel/flight_recorder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/support/ranks.h"
#include "worker/parallel/mesh.h"
#include "worker/parallel/recorded_collectives.h"
#include "worker/parallel/shared_blocks.h"
#include "worker/parallel/watched_work.h"

namespace tessera {
namespace {

using testing::Backend;
using testing::run_ranks;

TEST(FlightRecorder, RemembersTheLastOnes) {
  FlightRecorder recorder;
  EXPECT_EQ(recorder.record().phase(), "connect");
  recorder.enter("forward", 3);
  constexpr int64_t kAll = FlightRecorder::kMaxKept + 10;
  for (int64_t i = 1; i <= kAll; ++i) recorder.finish(recorder.issue("world", i, "barrier", 8));
  const v1::CollectiveRecord record = recorder.record();
  EXPECT_EQ(record.phase(), "forward");
  EXPECT_EQ(record.step(), 3);
  EXPECT_EQ(record.num_issued(), kAll);
  ASSERT_EQ(record.collectives_size(), FlightRecorder::kMaxKept);
  EXPECT_EQ(record.collectives(0).sequence(), 11);
  const v1::Collective& last = record.collectives(FlightRecorder::kMaxKept - 1);
  EXPECT_EQ(last.sequence(), kAll);
  EXPECT_EQ(last.bytes(), 8);
  EXPECT_TRUE(last.done());
  EXPECT_GT(last.issue_time().seconds(), 1'700'000'000);
}

TEST(FlightRecorder, WhatWasPushedOutIsNotTakenForWhatCameInItsPlace) {
  FlightRecorder recorder;
  const int64_t first = recorder.issue("cp", 1, "shift", 0);
  for (int64_t i = 1; i <= FlightRecorder::kMaxKept; ++i) recorder.issue("world", i, "barrier", 0);
  recorder.wait(first);
  recorder.finish(first);
  const v1::CollectiveRecord record = recorder.record();
  for (const v1::Collective& collective : record.collectives()) {
    EXPECT_FALSE(collective.done());
    EXPECT_FALSE(collective.is_waited_for());
  }
}

// Another thread's phases are not what the training thread does.
TEST(FlightRecorder, HasThePhaseOfItsThread) {
  FlightRecorder recorder;
  recorder.enter("backward", 2);
  std::async(std::launch::async, [&] { recorder.enter("reward", 9); }).get();
  EXPECT_EQ(recorder.record().phase(), "backward");
  EXPECT_EQ(recorder.record().step(), 2);
}

// Rank 1 comes to the barrier only once rank 0 was seen to wait for it there.
TEST(FlightRecorder, TellsWhereARankWaits) {
  FlightRecorder recorders[2];
  const auto waits = [&] {
    const v1::CollectiveRecord record = recorders[0].record();
    return record.collectives_size() == 2 && record.collectives(1).is_waited_for();
  };
  run_ranks(Backend::kSharedMemory, 2, [&](Collectives& inner) {
    FlightRecorder& recorder = recorders[inner.rank()];
    const auto group = make_recorded_collectives(inner, "dp_shard", recorder);
    const at::Tensor all = at::empty({2}), mine = at::ones({1});
    const auto work = group->all_gather(all, mine);
    EXPECT_FALSE(recorder.record().collectives(0).done());
    work->wait();
    EXPECT_TRUE(recorder.record().collectives(0).done());
    if (inner.rank() == 1) {
      while (!waits()) std::this_thread::yield();
      const v1::Collective waited = recorders[0].record().collectives(1);
      EXPECT_EQ(waited.group(), "dp_shard");
      EXPECT_EQ(waited.kind(), "barrier");
      EXPECT_EQ(waited.sequence(), 2);
      EXPECT_FALSE(waited.done());
      EXPECT_EQ(recorder.record().num_issued(), 1);
    }
    group->barrier();
    EXPECT_TRUE(recorder.record().collectives(1).done());
  });
}

TEST(FlightRecorder, KeepsWhatALostPeerWasWaitedForIn) {
  FlightRecorder recorder;
  EXPECT_THROW(run_ranks(Backend::kThreads, 2,
                         [&](Collectives& inner) {
                           if (inner.rank() == 1) return;
                           make_recorded_collectives(inner, "world", recorder)->barrier();
                         }),
               NetworkError);
  ASSERT_EQ(recorder.record().collectives_size(), 1);
  EXPECT_TRUE(recorder.record().collectives(0).is_waited_for());
}

// Memory that ranks share is filled without a collective.
TEST(FlightRecorder, SeesSharedBlocks) {
  run_ranks(Backend::kSharedMemory, 2, [](Collectives& inner) {
    FlightRecorder recorder;
    const auto group = make_recorded_collectives(inner, "dp_shard", recorder);
    const auto blocks = SharedBlocks::open(*group, at::kCPU, 1 << 10, std::chrono::minutes(1));
    const int64_t before = recorder.record().num_issued();
    auto place = blocks->take(64);
    auto work = watched(*group, "shared_gather", 32, blocks->fill([] {}));
    EXPECT_EQ(recorder.record().num_issued(), before + 1);
    work->wait();
    const v1::CollectiveRecord record = recorder.record();
    const v1::Collective& last = record.collectives(record.collectives_size() - 1);
    EXPECT_EQ(last.kind(), "shared_gather");
    EXPECT_EQ(last.bytes(), 32);
    EXPECT_TRUE(last.done());
    group->barrier();
  });
}

// An axis of one rank waits for nobody, and groups go by their axes' names.
TEST(FlightRecorder, KnowsTheAxesOfAMesh) {
  testing::run_worlds(Backend::kThreads, 4, [](World& world) {
    FlightRecorder recorder;
    const Mesh mesh = recorded(Mesh(world, {.dp_replicate = 2, .dp_shard = 2, .cp = 1}), recorder);
    for (Collectives* group :
         {&mesh.world, &mesh.shard, &mesh.replicate, &mesh.context, &mesh.data}) {
      group->barrier();
    }
    std::vector<std::string> names;
    const v1::CollectiveRecord record = recorder.record();
    for (const v1::Collective& collective : record.collectives())
      names.push_back(collective.group());
    EXPECT_EQ(names, (std::vector<std::string>{"world", "dp_shard", "dp_replicate", "data"}));
    mesh.world.barrier();
  });
}

}  // namespace
}  // namespace tessera
