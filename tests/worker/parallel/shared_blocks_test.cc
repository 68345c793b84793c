// Blocks that ranks share, with ranks as threads.
#include "worker/parallel/shared_blocks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "tests/support/ranks.h"

namespace tessera {
namespace {

using testing::Backend;
using testing::run_ranks;

constexpr std::chrono::seconds kTimeout{20};

// One float for each rank.
struct Block {
  Block(SharedBlocks& blocks, Collectives& group, float value)
      : place(blocks.take(group.size() * int64_t{sizeof(float)})),
        work(blocks.fill([this, &group, value] { floats()[group.rank()] = value; })) {}
  float* floats() const { return static_cast<float*>(place->get()); }

  std::optional<c10::DataPtr> place;
  std::unique_ptr<Work> work;
};

TEST(SharedBlocks, HoldThePartsOfAllRanks) {
  run_ranks(Backend::kThreads, 3, [](Collectives& group) {
    const auto blocks = SharedBlocks::open(group, at::kCPU, 3 * sizeof(float), kTimeout);
    ASSERT_NE(blocks, nullptr);
    // Always two at once, as blocks are prefetched.
    auto block = std::make_unique<Block>(*blocks, group, 10.0f * group.rank());
    for (int number = 1; number < 200; ++number) {
      block->work->wait();
      auto next = std::make_unique<Block>(*blocks, group,
                                          10.0f * group.rank() + static_cast<float>(number));
      for (int rank = 0; rank < 3; ++rank) {
        ASSERT_EQ(block->floats()[rank], 10.0f * rank + static_cast<float>(number - 1))
            << "of rank " << rank;
      }
      block = std::move(next);
    }
    block->work->wait();
    block.reset();
    group.barrier();
  });
}

TEST(SharedBlocks, AreInOnePlace) {
  std::atomic<int> first_of_rank_1 = 0;
  run_ranks(Backend::kSharedMemory, 2, [&](Collectives& group) {
    const auto blocks = SharedBlocks::open(group, at::kCPU, 1 << 20, kTimeout);
    Block block(*blocks, group, static_cast<float>(7 + group.rank()));
    block.work->wait();
    if (group.rank() == 0) block.floats()[2] = 42;  // behind the parts, and seen by the other
    group.barrier();
    if (group.rank() == 1) first_of_rank_1 = static_cast<int>(block.floats()[2]);
    group.barrier();
    block.place.reset();
  });
  EXPECT_EQ(first_of_rank_1, 42);
}

TEST(SharedBlocks, HaveRoomForTwo) {
  run_ranks(Backend::kThreads, 2, [](Collectives& group) {
    const auto blocks = SharedBlocks::open(group, at::kCPU, 1000, kTimeout);
    std::optional<c10::DataPtr> first = blocks->take(1000), second = blocks->take(400);
    ASSERT_TRUE(first && second);
    EXPECT_FALSE(blocks->take(1000));
    std::optional<c10::DataPtr> third = blocks->take(400);  // beside the second
    ASSERT_TRUE(third);
    first.reset();
    EXPECT_TRUE(blocks->take(1000));
    second.reset();
    EXPECT_FALSE(blocks->take(1025));
    third.reset();
    EXPECT_TRUE(blocks->take(1000));
    group.barrier();
  });
}

TEST(SharedBlocks, AreNotThereWhereMemoryIsNotShared) {
  run_ranks(Backend::kThreads, 2, [](Collectives& group) {
    EXPECT_EQ(SharedBlocks::open(group, at::kMeta, 1000, kTimeout), nullptr);
    EXPECT_EQ(SharedBlocks::open(group, at::kCPU, 0, kTimeout), nullptr);
  });
  const auto alone = make_single_collectives();
  EXPECT_EQ(SharedBlocks::open(*alone, at::kCPU, 1000, kTimeout), nullptr);
}

TEST(SharedBlocks, ARankThatEndsIsALostPeer) {
  run_ranks(Backend::kThreads, 2, [](Collectives& group) {
    auto blocks = SharedBlocks::open(group, at::kCPU, 1000, kTimeout);
    if (group.rank() == 1) return;
    Block block(*blocks, group, 1);
    EXPECT_THROW(block.work->wait(), NetworkError);
    block.place.reset();
  });
}

}  // namespace
}  // namespace tessera
