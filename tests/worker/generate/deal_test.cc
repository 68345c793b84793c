// Who makes which completions.
#include "worker/generate/deal.h"

#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;

using Deal = std::vector<std::vector<DealtSamples>>;

int64_t completions(const std::vector<DealtSamples>& dealt) {
  int64_t count = 0;
  for (const DealtSamples& part : dealt) count += part.count;
  return count;
}

TEST(DealSamples, EveryCompletionIsMadeOnceAndRanksHaveAsMany) {
  for (const int ranks : {1, 2, 3, 5, 16}) {
    const std::vector<int64_t> lengths{5, 9, 1, 7, 7, 2, 30};
    const Deal dealt = deal_samples(lengths, 3, ranks);
    std::vector<std::vector<int>> made(lengths.size(), std::vector<int>(3));
    for (const auto& of_rank : dealt) {
      for (const DealtSamples& part : of_rank) {
        for (int64_t i = 0; i < part.count; ++i) ++made[part.request][part.first + i];
      }
    }
    for (const auto& of_request : made) EXPECT_THAT(of_request, ElementsAre(1, 1, 1));
    const auto [fewest, most] = std::ranges::minmax(dealt, {}, completions);
    EXPECT_LE(completions(most) - completions(fewest), 1) << ranks;
  }
}

TEST(DealSamples, KeepsPromptsTogetherAndSpreadsLongOnes) {
  const std::vector<int64_t> lengths{1, 40, 30, 2};
  EXPECT_THAT(deal_samples(lengths, 8, 2),
              ElementsAre(ElementsAre(DealtSamples{1, 0, 8}, DealtSamples{0, 0, 8}),
                          ElementsAre(DealtSamples{2, 0, 8}, DealtSamples{3, 0, 8})));
}

TEST(DealSamples, CutsWhatIsTooFewForAll) {
  const std::vector<int64_t> lengths{3};
  EXPECT_THAT(deal_samples(lengths, 4, 3),
              ElementsAre(ElementsAre(DealtSamples{0, 0, 1}), ElementsAre(DealtSamples{0, 1, 1}),
                          ElementsAre(DealtSamples{0, 2, 2})));
}

TEST(EvenOut, RanksAreLeftWithAsMany) {
  const std::vector<RankLoad> loads{{.unfinished = 60, .movable = 60, .room = 9},
                                    {.unfinished = 3, .movable = 3, .room = 99},
                                    {.unfinished = 30, .movable = 30, .room = 99},
                                    {.unfinished = 0, .movable = 0, .room = 99}};
  EXPECT_THAT(even_out(loads),
              ElementsAre(SampleMove{0, 1, 21}, SampleMove{0, 3, 15}, SampleMove{2, 3, 6}));
  EXPECT_THAT(even_out(std::vector<RankLoad>(3, {.unfinished = 20, .movable = 20, .room = 99})),
              ElementsAre());
  EXPECT_THAT(even_out(std::vector<RankLoad>{{.unfinished = 40, .movable = 40, .room = 99}}),
              ElementsAre());
}

TEST(EvenOut, OnlyWhatMayMoveGoesWhereThereIsRoom) {
  const RankLoad full{.unfinished = 40, .movable = 5, .room = 0};
  const RankLoad idle{.unfinished = 0, .movable = 0, .room = 3};
  EXPECT_THAT(even_out(std::vector<RankLoad>{full, idle, idle}),
              ElementsAre(SampleMove{0, 1, 3}, SampleMove{0, 2, 2}));
  EXPECT_THAT(even_out(std::vector<RankLoad>{full, full}), ElementsAre());
  // A pass of a few takes as long as one of half as many.
  const RankLoad few{.unfinished = kLeastDivided - 1, .movable = 15, .room = 99};
  EXPECT_THAT(even_out(std::vector<RankLoad>{few, {.room = 99}}), ElementsAre());
}

}  // namespace
}  // namespace tessera
