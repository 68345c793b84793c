#include "worker/trainer/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace tessera {
namespace {

class MetricsLogTest : public testing::Test {
 protected:
  MetricsLogTest() {
    char pattern[] = "/tmp/tessera-metrics-XXXXXX";
    checkpoint_ = mkdtemp(pattern);
  }
  ~MetricsLogTest() override { std::filesystem::remove_all(checkpoint_); }

  void write(const std::string& bytes) const {
    std::ofstream(checkpoint_ / kMetricsLogFile, std::ios::binary) << bytes;
  }

  std::filesystem::path checkpoint_;
};

v1::TrainerEvent step(int number) {
  v1::TrainerEvent event;
  event.mutable_time()->set_seconds(1000 + number);
  event.mutable_step()->set_step(number);
  event.mutable_step()->set_loss(1. / number);
  return event;
}

std::vector<int> steps_of(const std::vector<v1::TrainerEvent>& events) {
  std::vector<int> steps;
  for (const v1::TrainerEvent& event : events) steps.push_back(event.step().step());
  return steps;
}

TEST_F(MetricsLogTest, GoesOnWhereACheckpointEnded) {
  MetricsLog first;
  first.add(step(1));
  v1::TrainerEvent evaluation;
  evaluation.mutable_eval()->set_step(1);
  first.add(evaluation);
  write(first.bytes());
  MetricsLog second;
  const auto events = second.take_up(checkpoint_);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].SerializeAsString(), step(1).SerializeAsString());
  EXPECT_TRUE(events[1].has_eval());
  second.add(step(2));
  write(second.bytes());
  EXPECT_EQ(MetricsLog().take_up(checkpoint_).size(), 3u);
}

TEST_F(MetricsLogTest, KeepsTheLatestThatFit) {
  MetricsLog log;
  constexpr int kSteps = 100'000;
  for (int number = 1; number <= kSteps; ++number) log.add(step(number));
  const std::string bytes = log.bytes();
  EXPECT_LE(bytes.size(), MetricsLog::kMaxBytes);
  EXPECT_GT(bytes.size(), MetricsLog::kMaxBytes - 100);
  write(bytes);
  const std::vector<int> steps = steps_of(MetricsLog().take_up(checkpoint_));
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.back(), kSteps);
  EXPECT_EQ(steps.front(), kSteps - static_cast<int>(steps.size()) + 1);
}

// It may come from anywhere, and is no reason not to go on.
TEST_F(MetricsLogTest, WhatIsNoLogEndsIt) {
  EXPECT_TRUE(MetricsLog().take_up(checkpoint_).empty());  // of an older version
  MetricsLog log;
  log.add(step(1));
  const std::string bytes = log.bytes();
  for (const std::string& bad : {std::string("\xff\xff\xff\xff\x0f"), std::string("nonsense"),
                                 std::string(64, '\0'), bytes.substr(0, bytes.size() - 1)}) {
    write(bytes + bad);
    EXPECT_THAT(steps_of(MetricsLog().take_up(checkpoint_)), testing::ElementsAre(1)) << bad;
  }
  write(std::string(2 * MetricsLog::kMaxBytes, '\x7f'));
  EXPECT_TRUE(MetricsLog().take_up(checkpoint_).empty());
}

}  // namespace
}  // namespace tessera
