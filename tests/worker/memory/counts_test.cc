#include "worker/memory/counts.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>
#include <vector>

namespace tessera {
namespace {

using ::testing::UnorderedElementsAre;

Attribution who(Owner owner, BlockId block, Phase phase) {
  return {.owner = owner, .phase = phase, .block = block};
}

int64_t sum(const std::vector<MemoryCell>& cells) {
  int64_t bytes = 0;
  for (const MemoryCell& cell : cells) bytes += cell.bytes;
  return bytes;
}

TEST(MemoryCounts, SplitsThePeakByOwnerBlockAndPhase) {
  MemoryCounts counts;
  const Attribution weights = who(Owner::kParameters, 0, Phase::kLoad);
  const Attribution saved = who(Owner::kActivations, 1, Phase::kForward);
  const Attribution scratch = who(Owner::kActivations, 2, Phase::kBackward);
  counts.add(weights, 100);
  counts.add(saved, 10);
  counts.add(scratch, 50);
  counts.remove(saved, 10);
  counts.add(scratch, 9);
  EXPECT_EQ(counts.totals().peak_bytes, 160);
  EXPECT_THAT(counts.cells_at_peak(),
              UnorderedElementsAre(MemoryCell{Owner::kParameters, Phase::kLoad, 0, 100},
                                   MemoryCell{Owner::kActivations, Phase::kForward, 1, 10},
                                   MemoryCell{Owner::kActivations, Phase::kBackward, 2, 50}));
  EXPECT_THAT(counts.cells_now(),
              UnorderedElementsAre(MemoryCell{Owner::kParameters, Phase::kLoad, 0, 100},
                                   MemoryCell{Owner::kActivations, Phase::kBackward, 2, 59}));
  EXPECT_EQ(counts.reached_peak().block, 2);
  EXPECT_EQ(counts.reached_peak().phase, Phase::kBackward);
}

TEST(MemoryCounts, KeepsAPeakOfEachPhase) {
  MemoryCounts counts;
  const Attribution saved = who(Owner::kActivations, 1, Phase::kForward);
  const Attribution cache = who(Owner::kKvCache, 1, Phase::kGenerate);
  counts.add(cache, 100);
  counts.add(saved, 5);
  counts.remove(cache, 100);
  counts.add(saved, 10);
  const auto peak = [&](Phase phase) {
    return counts.totals().peak_by_phase[static_cast<size_t>(phase)];
  };
  EXPECT_EQ(peak(Phase::kGenerate), 100);
  EXPECT_EQ(peak(Phase::kForward), 105);
  EXPECT_EQ(peak(Phase::kBackward), 0);
  counts.reset_peak();
  EXPECT_EQ(peak(Phase::kForward), 0);
  counts.add(saved, 1);
  EXPECT_EQ(peak(Phase::kForward), 16);
}

// Of two moments with as much, the first is the peak.
TEST(MemoryCounts, KeepsTheSplitOfTheFirstPeak) {
  MemoryCounts counts;
  const Attribution a = who(Owner::kGradients, 1, Phase::kBackward);
  const Attribution b = who(Owner::kOptimizer, 1, Phase::kOptimizer);
  counts.add(a, 70);
  counts.remove(a, 70);
  counts.add(b, 70);
  counts.remove(b, 70);
  EXPECT_THAT(counts.cells_at_peak(),
              UnorderedElementsAre(MemoryCell{Owner::kGradients, Phase::kBackward, 1, 70}));
}

// Against counts that copy everything at each peak.
TEST(MemoryCounts, EqualsCopyingAtEachPeak) {
  MemoryCounts counts;
  std::mt19937 random(7);
  struct Live {
    Attribution who;
    int64_t bytes;
  };
  std::vector<Live> live, at_peak;
  int64_t current = 0, peak = 0;
  for (int i = 0; i < 5000; ++i) {
    if (i == 3000) {
      counts.reset_peak();
      peak = current;
      at_peak = live;
    }
    if (!live.empty() && random() % 100 < 48) {
      const size_t index = random() % live.size();
      counts.remove(live[index].who, live[index].bytes);
      current -= live[index].bytes;
      live.erase(live.begin() + static_cast<int64_t>(index));
    } else {
      const Live next{
          who(static_cast<Owner>(random() % kNumOwners), static_cast<BlockId>(random() % 5),
              static_cast<Phase>(random() % kNumPhases)),
          static_cast<int64_t>(random() % 1000)};
      counts.add(next.who, next.bytes);
      live.push_back(next);
      current += next.bytes;
    }
    if (current > peak) {
      peak = current;
      at_peak = live;
    }
    if (i % 617 != 0) continue;
    MemoryCounts expected;
    for (const Live& entry : at_peak) expected.add(entry.who, entry.bytes);
    ASSERT_EQ(counts.totals().current_bytes, current);
    ASSERT_EQ(counts.totals().peak_bytes, peak);
    ASSERT_EQ(counts.totals().at_peak_by_owner, expected.totals().current_by_owner);
    ASSERT_EQ(counts.cells_at_peak(), expected.cells_now());
    ASSERT_EQ(sum(counts.cells_at_peak()), peak);
    ASSERT_EQ(sum(counts.cells_now()), current);
  }
}

TEST(Attribution, ScopesNestAndEnd) {
  const BlockId block = block_id("counts.test");
  EXPECT_EQ(block_id("counts.test"), block);
  EXPECT_EQ(block_name(block), "counts.test");
  EXPECT_EQ(block_name(0), "");
  {
    const OwnerScope owner(Owner::kHead);
    const PhaseScope phase(Phase::kBackward);
    const BlockScope scope(block);
    const HostSpaceScope host;
    {
      const PhaseScope inner(Phase::kEval);
      EXPECT_EQ(current_attribution().phase, Phase::kEval);
    }
    EXPECT_EQ(current_attribution().owner, Owner::kHead);
    EXPECT_EQ(current_attribution().phase, Phase::kBackward);
    EXPECT_EQ(current_attribution().block, block);
    EXPECT_EQ(current_attribution().space, Space::kHost);
    enter_block(block_id("counts.next"));
    EXPECT_EQ(block_name(current_attribution().block), "counts.next");
  }
  EXPECT_EQ(current_attribution().owner, Owner::kOther);
  EXPECT_EQ(current_attribution().phase, Phase::kLoad);
  EXPECT_EQ(current_attribution().block, 0);
  EXPECT_EQ(current_attribution().space, Space::kDevice);
}

TEST(Attribution, BlocksBeyondTheLastShareIt) {
  for (int i = 0; i < 2 * kMaxBlocks; ++i) block_id("many." + std::to_string(i));
  EXPECT_EQ(block_id("many.2047"), kMaxBlocks - 1);
  EXPECT_EQ(block_id("another"), kMaxBlocks - 1);
  EXPECT_EQ(block_name(kMaxBlocks - 1), "others");
  EXPECT_EQ(block_name(block_id("many.0")), "many.0");
}

}  // namespace
}  // namespace tessera
