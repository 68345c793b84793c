#include "worker/trainer/score_passes.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

int64_t tokens_of(const std::vector<int64_t>& pass, const std::vector<int64_t>& lengths) {
  return std::transform_reduce(pass.begin(), pass.end(), int64_t{0}, std::plus<>(),
                               [&](int64_t text) { return lengths[text]; });
}

TEST(ScorePasses, FillsPassesWithTheLongestFirst) {
  const std::vector<int64_t> lengths{3, 9, 4, 0, 12, 5};
  EXPECT_THAT(
      deal_scores(lengths, 1, 10),
      ElementsAre(ElementsAre(ElementsAre(4), ElementsAre(1), ElementsAre(5, 2), ElementsAre(0))));
}

TEST(ScorePasses, RanksHaveAsManyPassesAndAboutAsManyTokens) {
  EXPECT_THAT(deal_scores(std::vector<int64_t>{8, 4, 4}, 2, 5),
              ElementsAre(ElementsAre(ElementsAre(0), IsEmpty()),
                          ElementsAre(ElementsAre(1), ElementsAre(2))));
  EXPECT_THAT(
      deal_scores(std::vector<int64_t>{0, 7}, 3, 5),
      ElementsAre(ElementsAre(ElementsAre(1)), ElementsAre(IsEmpty()), ElementsAre(IsEmpty())));
}

TEST(ScorePasses, EachTextIsScoredOnceWithinTheBound) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<int64_t> lengths(random() % 60), seen(lengths.size());
    for (int64_t& length : lengths) length = random() % 40;
    const int64_t most = 1 + random() % 100;
    const auto dealt = deal_scores(lengths, 1 + static_cast<int>(random() % 4), most);
    for (const ScorePasses& passes : dealt) {
      EXPECT_EQ(passes.size(), dealt.front().size());
      for (const std::vector<int64_t>& pass : passes) {
        EXPECT_TRUE(pass.size() <= 1 || tokens_of(pass, lengths) <= most);
        for (const int64_t text : pass) ++seen[text];
      }
    }
    for (size_t i = 0; i < lengths.size(); ++i) EXPECT_EQ(seen[i], lengths[i] > 0 ? 1 : 0);
  }
}

}  // namespace
}  // namespace tessera
