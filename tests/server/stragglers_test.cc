// When a rank is a straggler, and until when.
#include "server/agents/stragglers.h"

#include <gtest/gtest.h>

namespace tessera::server {
namespace {

v1::StepMetrics step(const std::vector<double>& busy) {
  v1::StepMetrics metrics;
  metrics.set_step(5);
  for (const double seconds : busy) metrics.add_rank_times()->set_busy_seconds(seconds);
  return metrics;
}

// The first change that so many events of the kind bring, and how many it took.
std::optional<v1::Straggler> observe(StragglerRule& rule, const std::vector<double>& busy,
                                     int count, int* taken = nullptr) {
  for (int i = 1; i <= count; ++i) {
    if (auto change = rule.observe(step(busy))) {
      if (taken != nullptr) *taken = i;
      return change;
    }
  }
  return std::nullopt;
}

TEST(Stragglers, AreSlowInMostEvents) {
  StragglerRule rule;
  EXPECT_FALSE(observe(rule, {1, 1, 1.5}, kSlowEvents - 1));
  EXPECT_FALSE(observe(rule, {1, 1, 1}, kStragglerEvents)) << "and here it is not";
  int taken = 0;
  const auto found = observe(rule, {1, 1.1, 1.5}, 100, &taken);
  ASSERT_TRUE(found);
  EXPECT_EQ(taken, kSlowEvents);
  EXPECT_EQ(found->rank(), 2);
  EXPECT_EQ(found->busy_seconds(), 1.5);
  EXPECT_EQ(found->median_busy_seconds(), 1.1);
  EXPECT_EQ(found->step(), 5);
  EXPECT_FALSE(found->is_over());
  EXPECT_FALSE(observe(rule, {1, 1.1, 1.5}, 100)) << "told once";
}

TEST(Stragglers, NeedNotBeSlowEveryTime) {
  StragglerRule now_and_then;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(now_and_then.observe(step({1, i % 2 == 0 ? 2.0 : 1.0}))) << "every second event";
  }
  StragglerRule mostly;
  bool is_found = false;
  for (int i = 0; i < kStragglerEvents; ++i) {
    is_found |= mostly.observe(step({1, i % 4 == 3 ? 1.0 : 2.0})).has_value();
  }
  EXPECT_TRUE(is_found) << "three of four";
}

TEST(Stragglers, KeepUpAgainOnceSlowInFewEvents) {
  StragglerRule rule;
  ASSERT_TRUE(observe(rule, {2, 1}, 100));
  ASSERT_FALSE(observe(rule, {2, 1}, kStragglerEvents));
  EXPECT_FALSE(observe(rule, {1, 1}, kStragglerEvents - kCalmEvents - 1));
  EXPECT_FALSE(observe(rule, {2, 1}, 1));
  int taken = 0;
  const auto over = observe(rule, {1, 1}, 100, &taken);
  ASSERT_TRUE(over);
  EXPECT_TRUE(over->is_over());
  EXPECT_EQ(over->rank(), 0);
  EXPECT_EQ(taken, 1);
  EXPECT_TRUE(observe(rule, {2, 1}, kStragglerEvents)) << "and again";
}

TEST(Stragglers, OfTwoTheSlowestIsNamedAndNeitherHidesTheOther) {
  StragglerRule rule;
  std::optional<v1::Straggler> found;
  for (int i = 0; i < kSlowEvents; ++i) {
    found = rule.observe(
        step(i % 2 == 0 ? std::vector<double>{3, 2, 1, 1, 1} : std::vector<double>{2, 3, 1, 1, 1}));
  }
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank(), 1);
}

TEST(Stragglers, AreNotFoundInNoise) {
  StragglerRule rule;
  EXPECT_FALSE(observe(rule, {1, 1.2}, 100)) << "no more than a fifth";
  EXPECT_FALSE(observe(rule, {1e-4, 5e-4}, 100)) << "less than a millisecond";
  EXPECT_FALSE(observe(rule, {5}, 100)) << "one rank";
  EXPECT_FALSE(observe(rule, {}, 100)) << "of a trainer that tells none";
}

TEST(Stragglers, OfAnotherNumberOfRanksAreOthers) {
  StragglerRule rule;
  EXPECT_FALSE(observe(rule, {1, 2}, kSlowEvents - 1));
  EXPECT_FALSE(observe(rule, {1, 2, 1}, kSlowEvents - 1));
  EXPECT_TRUE(observe(rule, {1, 2, 1}, 1));
}

}  // namespace
}  // namespace tessera::server
