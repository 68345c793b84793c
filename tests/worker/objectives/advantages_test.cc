#include "worker/objectives/advantages.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::Pointwise;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kTiny = 1e-4;  // added to deviations
// Of two groups that stand mixed.
const std::vector<int32_t> kMixed{0, 1, 1, 0, 0, 1};

MATCHER_P(Near, tolerance, "") {
  return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance;
}

TEST(Deviation, IsOfASampleAndLeavesOutWhatIsNaN) {
  const std::vector<double> values{1, kNan, 2, 4};
  EXPECT_NEAR(mean_of(values), 7. / 3, 1e-12);
  EXPECT_NEAR(deviation_of(values), std::sqrt(7. / 3), 1e-12);
  const std::vector<double> one{3, kNan}, none{kNan};
  EXPECT_TRUE(std::isnan(deviation_of(one)));
  EXPECT_TRUE(std::isnan(mean_of(none)));
}

TEST(CompareInGroups, TakesTheMeanOfEachGroup) {
  const std::vector<double> rewards{1, 10, 20, 2, 6, 30};
  const Advantages plain = compare_in_groups(rewards, kMixed, 2, RewardScale::kNone);
  EXPECT_THAT(plain.of_rollouts, Pointwise(Near(1e-12), {-2., -10., 0., -1., 3., 10.}));
  EXPECT_EQ(plain.share_without_deviation, 0);
}

TEST(CompareInGroups, ScalesWithTheDeviationOfTheGroupOrOfAll) {
  const std::vector<double> rewards{1, 10, 20, 2, 6, 30};
  const double first = std::sqrt(7.) + kTiny, second = 10 + kTiny;
  EXPECT_THAT(
      compare_in_groups(rewards, kMixed, 2, RewardScale::kGroup).of_rollouts,
      Pointwise(Near(1e-12), {-2 / first, -10 / second, 0., -1 / first, 3 / first, 10 / second}));
  const double all = deviation_of(rewards) + kTiny;
  EXPECT_THAT(compare_in_groups(rewards, kMixed, 2, RewardScale::kBatch).of_rollouts,
              Pointwise(Near(1e-12), {-2 / all, -10 / all, 0., -1 / all, 3 / all, 10 / all}));
}

TEST(CompareInGroups, LeavesOutWhatCannotBeJudged) {
  const std::vector<double> rewards{1, 5, 5, kNan, 3, 5};
  const Advantages found = compare_in_groups(rewards, kMixed, 2, RewardScale::kGroup);
  const double first = std::sqrt(2.) + kTiny;
  EXPECT_THAT(found.of_rollouts, Pointwise(Near(1e-12), {-1 / first, 0., 0., 0., 1 / first, 0.}));
  // The second group agrees.
  EXPECT_EQ(found.share_without_deviation, 0.5);
}

TEST(CompareWithOthers, TakesTheMeanOfTheOthers) {
  const std::vector<double> rewards{1, 10, 20, 2, 6, 30};
  EXPECT_THAT(compare_with_others(rewards, {}, kMixed, 2, {}).of_rollouts,
              Pointwise(Near(1e-12), {-3., -15., 0., -1.5, 4.5, 15.}));
}

TEST(CompareWithOthers, ClipsRewardsBeforeTheirCosts) {
  const std::vector<double> rewards{9, 1, -9, 0}, costs{1, 2, 3, 4}, range{-2, 2};
  const std::vector<int32_t> groups{0, 0, 1, 1};
  EXPECT_THAT(compare_with_others(rewards, costs, groups, 2, {.clip_range = range}).of_rollouts,
              Pointwise(Near(1e-12), {2., -2., -1., 1.}));
}

TEST(CompareWithOthers, GivesNothingToWhatHasNoOthers) {
  const std::vector<double> rewards{9, kNan, 1, 3};
  const std::vector<int32_t> groups{0, 0, 1, 1};
  EXPECT_THAT(compare_with_others(rewards, {}, groups, 2, {}).of_rollouts,
              Pointwise(Near(1e-12), {0., 0., -2., 2.}));
}

TEST(CompareWithOthers, NormalizesOverAll) {
  const std::vector<double> rewards{1, 3, 10, 30};
  const std::vector<int32_t> groups{0, 0, 1, 1};
  const std::vector<double> plain{-2, 2, -20, 20};
  const double deviation = deviation_of(plain) + kTiny;
  EXPECT_THAT(
      compare_with_others(rewards, {}, groups, 2, {.normalize = true}).of_rollouts,
      Pointwise(Near(1e-12), {-2 / deviation, 2 / deviation, -20 / deviation, 20 / deviation}));
}

Rollout with_rewards(std::vector<float> rewards) {
  Rollout rollout;
  rollout.prompt = {1};
  rollout.completion = {2};
  rollout.rewards = std::move(rewards);
  return rollout;
}

TEST(CompareEachInGroups, NormalizesEachRewardBeforeTheSum) {
  const std::vector<Rollout> rollouts{with_rewards({1, 100}), with_rewards({3, 300}),
                                      with_rewards({2, 500}), with_rewards({6, 100})};
  const std::vector<int32_t> groups{0, 0, 1, 1};
  const std::vector<int64_t> ends{0, 1, 2, 3, 4};
  const Generation generation{
      .rollouts = rollouts, .groups = groups, .num_groups = 2, .label_ends = ends};
  const auto part = [](double ahead, double deviation) { return ahead / (deviation + kTiny); };
  const double root = std::sqrt(2.);
  std::vector<double> sums{part(-1, root) + 2 * part(-100, 100 * root),
                           part(1, root) + 2 * part(100, 100 * root),
                           part(-2, 2 * root) + 2 * part(200, 200 * root),
                           part(2, 2 * root) + 2 * part(-200, 200 * root)};
  const double deviation = deviation_of(sums) + kTiny, mean = mean_of(sums);
  for (double& sum : sums) sum = (sum - mean) / deviation;
  const std::vector<double> weights{1, 2};
  EXPECT_THAT(compare_each_in_groups(generation, weights).of_rollouts, Pointwise(Near(1e-9), sums));
}

}  // namespace
}  // namespace tessera
