#include "worker/objectives/gae.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::Pointwise;

MATCHER_P(Near, tolerance, "") {
  return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance;
}

constexpr double kTolerance = 2e-6;  // of TRL's numbers, which are of float32

// Completions of 3, 4 and 1 labels: the first and the last have an end.
class TokenAdvantagesTest : public ::testing::Test {
 protected:
  TokenAdvantagesTest() : rollouts_(3) {}

  Generation generation() const {
    return {.rollouts = rollouts_, .groups = {}, .label_ends = ends_};
  }

  std::vector<Rollout> rollouts_;
  std::vector<int64_t> ends_{0, 3, 7, 8};
  const std::vector<double> scores_{1, -0.5, 2};
  const GenerationScores known_{.old_logprobs = {-1, -.5, -2, -.25, -1.5, -.75, -3, -.125},
                                .reference_logprobs = {-1.5, -.25, -2.5, -.5, -1, -1.25, -2, -.625},
                                .values = {.5, -.25, 1, .125, .75, -.5, .25, -1},
                                .end_values = {.375, 9, -.25}};
};

// The expectations are made with masked_whiten and the loop of TRL 1.12 on padded batches.
TEST_F(TokenAdvantagesTest, AreTrls) {
  const TokenAdvantages found =
      estimate_advantages(generation(), scores_, known_, {.kl_coef = 0.1, .lam = 0.95});
  EXPECT_THAT(found.advantages,
              Pointwise(Near(kTolerance), {0.056599, 0.744433, -0.278699, -0.586099, -1.110904,
                                           -0.147714, -0.733647, 2.056032}));
  EXPECT_THAT(found.returns, Pointwise(Near(kTolerance), {0.837922, 0.947812, 0.91875, -0.340544,
                                                          -0.371625, -0.4175, -0.4, 1.8375}));
  EXPECT_NEAR(found.end_returns[0], 1, kTolerance);
  EXPECT_TRUE(std::isnan(found.end_returns[1]));
  EXPECT_NEAR(found.end_returns[2], 2, kTolerance);
  EXPECT_NEAR(found.mean_kl, 1. / 6, 1e-9);
  EXPECT_NEAR(found.mean_entropy, 3.0416666666, 1e-9);
}

TEST_F(TokenAdvantagesTest, AreTrlsWithWhiteRewardsK3AndDiscounts) {
  const TokenAdvantages found = estimate_advantages(
      generation(), scores_, known_,
      {.kl_coef = 0.2, .k3 = true, .whiten_rewards = true, .gamma = 0.9, .lam = 0.8});
  EXPECT_THAT(found.advantages,
              Pointwise(Near(kTolerance), {-0.088932, 0.735034, -0.082605, -0.448397, -1.10637,
                                           -0.174351, -0.885205, 2.050827}));
  EXPECT_THAT(found.returns,
              Pointwise(Near(kTolerance), {0.368852, 0.723923, 0.877338, -0.488248, -0.745695,
                                           -0.745708, -0.949077, 1.738611}));
  EXPECT_NEAR(found.end_returns[0], 1.273904, kTolerance);
  EXPECT_NEAR(found.end_returns[2], 2.626366, kTolerance);
  EXPECT_NEAR(found.mean_kl, 0.4519839, 1e-6);
}

// Nothing of it was made by the model, so that there is nothing to reward.
TEST_F(TokenAdvantagesTest, LeaveOutACompletionWithoutLabels) {
  ends_ = {0, 3, 3, 4};
  const GenerationScores known{.old_logprobs = {-1, -.5, -2, -.125},
                               .reference_logprobs = {-1, -.5, -2, -.125},
                               .values = {0, 0, 0, 0},
                               .end_values = {0, 7, 0}};
  const TokenAdvantages found = estimate_advantages(generation(), scores_, known, {});
  EXPECT_THAT(found.returns, Pointwise(Near(1e-6), {1., 1., 1., 2.}));
  EXPECT_TRUE(std::isnan(found.end_returns[0]));
  EXPECT_TRUE(std::isnan(found.end_returns[1]));
  EXPECT_NEAR(found.end_returns[2], 2, 1e-6);
}

TEST(Whiten, BringsToDeviationOne) {
  std::vector<double> values{1, 2, 4, 5};
  const double deviation = std::sqrt(10. / 3);
  whiten(values, /*shifts=*/true);
  EXPECT_THAT(values, Pointwise(Near(1e-7),
                                {-2 / deviation, -1 / deviation, 1 / deviation, 2 / deviation}));
  values = {1, 2, 4, 5};
  whiten(values, /*shifts=*/false);
  EXPECT_NEAR(values[3], 3 + 2 / deviation, 1e-7);
}

TEST(Whiten, LeavesASingleValue) {
  std::vector<double> values{3};
  whiten(values, /*shifts=*/true);
  EXPECT_EQ(values[0], 3);
}

}  // namespace
}  // namespace tessera
