#include "server/telemetry/thin_series.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::server {
namespace {

using testing::ElementsAre;

const ThinnedColumn& column(const ThinnedSeries& series, const std::string& name) {
  for (const ThinnedColumn& column : series.columns()) {
    if (column.name() == name) return column;
  }
  static const ThinnedColumn none;
  ADD_FAILURE() << "no column " << name;
  return none;
}

TEST(ThinSeries, ShowsEveryEventWhileThereAreFew) {
  ThinSeries series(8, 4);
  for (int step = 1; step <= 3; ++step) series.add(step, 100.0 + step, {{"loss", step * 2.0}});
  const ThinnedSeries shown = series.render(100);
  EXPECT_THAT(shown.first_step(), ElementsAre(1, 2, 3));
  EXPECT_THAT(shown.last_step(), ElementsAre(1, 2, 3));
  EXPECT_THAT(shown.time(), ElementsAre(101, 102, 103));
  EXPECT_THAT(column(shown, "loss").mean(), ElementsAre(2, 4, 6));
  EXPECT_EQ(column(shown, "loss").min_size(), 0);
  EXPECT_EQ(shown.events_a_bucket(), 1);
}

TEST(ThinSeries, AMillionStepsKeepMeansAndExtremes) {
  constexpr int kNumSteps = 1'000'000;
  ThinSeries series(2048, 4);
  for (int step = 1; step <= kNumSteps; ++step) {
    series.add(step, step, {{"loss", step == 777'777 ? 5.0 : 1.0}});
  }
  EXPECT_LE(series.num_buckets(), 2048u);
  const ThinnedSeries shown = series.render(2048);
  int events = 0;
  double sum = 0;
  float most = 0;
  int next = 1;
  for (int i = 0; i < shown.first_step_size(); ++i) {
    EXPECT_EQ(shown.first_step(i), next);
    next = shown.last_step(i) + 1;
    EXPECT_EQ(shown.num_events(i), next - shown.first_step(i));
    events += shown.num_events(i);
    sum += column(shown, "loss").mean(i) * shown.num_events(i);
    most = std::max(most, column(shown, "loss").max(i));
  }
  EXPECT_EQ(events, kNumSteps);
  EXPECT_NEAR(sum, kNumSteps + 4.0, 1.0);
  EXPECT_EQ(most, 5);
}

TEST(ThinSeries, AsksForFewerPointsPutBucketsTogether) {
  ThinSeries series(16, 4);
  for (int step = 1; step <= 10; ++step) series.add(step, step, {{"loss", step * 1.0}});
  const ThinnedSeries shown = series.render(4);
  EXPECT_THAT(shown.first_step(), ElementsAre(1, 4, 7, 10));
  EXPECT_THAT(shown.last_step(), ElementsAre(3, 6, 9, 10));
  EXPECT_THAT(column(shown, "loss").mean(), ElementsAre(2, 5, 8, 10));
  EXPECT_THAT(column(shown, "loss").min(), ElementsAre(1, 4, 7, 10));
  EXPECT_THAT(column(shown, "loss").max(), ElementsAre(3, 6, 9, 10));
}

TEST(ThinSeries, AStepBackForgetsWhatCameAfterTheCheckpoint) {
  ThinSeries series(64, 4);
  for (int step = 1; step <= 20; ++step) series.add(step, step, {{"loss", 1.0}});
  for (int step = 11; step <= 12; ++step) series.add(step, 100 + step, {{"loss", 7.0}});
  const ThinnedSeries shown = series.render(64);
  ASSERT_EQ(shown.last_step_size(), 12);
  EXPECT_EQ(column(shown, "loss").mean(9), 1);
  EXPECT_EQ(column(shown, "loss").mean(10), 7);
  EXPECT_EQ(shown.time(11), 112);
}

TEST(ThinSeries, AStepBackIntoABucketEndsItThere) {
  ThinSeries series(4, 4);
  for (int step = 1; step <= 8; ++step) series.add(step, step, {{"loss", 1.0}});
  series.add(4, 9, {{"loss", 2.0}});
  const ThinnedSeries shown = series.render(4);
  for (int i = 1; i < shown.first_step_size(); ++i) {
    EXPECT_GT(shown.first_step(i), shown.last_step(i - 1));
  }
  EXPECT_EQ(shown.last_step(shown.last_step_size() - 1), 4);
}

TEST(ThinSeries, ColumnsMayBeginLateAndHaveGaps) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  ThinSeries series(8, 2);
  series.add(1, 1, {{"loss", 1.0}});
  series.add(2, 2, {{"loss", kNan}, {"reward", 3.0}, {"beyond", 1.0}});
  const ThinnedSeries shown = series.render(8);
  EXPECT_TRUE(std::isnan(column(shown, "loss").mean(1)));
  EXPECT_TRUE(std::isnan(column(shown, "reward").mean(0)));
  EXPECT_EQ(column(shown, "reward").mean(1), 3);
  EXPECT_EQ(shown.columns_size(), 2) << "one too many was kept";
}

}  // namespace
}  // namespace tessera::server
