// The best evaluation and early stopping, by the rules of transformers' trainer.
#include "worker/trainer/best_metric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "worker/errors.h"

namespace tessera {
namespace {

using testing::ElementsAre;

v1::EvalMetrics metrics(int step, double value) {
  v1::EvalMetrics metrics;
  metrics.set_step(step);
  metrics.set_loss(value);
  (*metrics.mutable_metrics())["mean_token_accuracy"] = value;
  (*metrics.mutable_metrics())["aux_loss"] = value;
  return metrics;
}

// The steps, from 1, whose evaluations were the best so far.
std::vector<int> best_steps(const v1::Training& training, const std::vector<double>& values) {
  const BestMetric best(training);
  v1::CheckpointState state;
  std::vector<int> steps;
  for (size_t i = 0; i < values.size(); ++i) {
    const int step = static_cast<int>(i) + 1;
    if (best.update(metrics(step, values[i]), state)) steps.push_back(step);
  }
  return steps;
}

// The step after which training ends; 0: it goes on.
int last_step(const v1::Training& training, const std::vector<double>& values) {
  const BestMetric best(training);
  v1::CheckpointState state;
  for (size_t i = 0; i < values.size(); ++i) {
    const int step = static_cast<int>(i) + 1;
    if (best.gives_up(metrics(step, values[i]), state)) return step;
    best.update(metrics(step, values[i]), state);
  }
  return 0;
}

TEST(BestMetric, FollowsNothingUnlessSomethingNeedsIt) {
  v1::Training training;
  EXPECT_FALSE(BestMetric(training).is_followed());
  EXPECT_THAT(best_steps(training, {3, 2}), ElementsAre());
  training.set_load_best_model_at_end(true);
  EXPECT_TRUE(BestMetric(training).is_followed());
}

TEST(BestMetric, TakesTheLowestLoss) {
  v1::Training training;
  training.set_load_best_model_at_end(true);
  EXPECT_THAT(best_steps(training, {3, 3, 2, 2.5, 1}), ElementsAre(1, 3, 5));
}

TEST(BestMetric, TakesTheHighestOfOtherMetricsUnlessToldOtherwise) {
  v1::Training training;
  training.set_metric_for_best_model("eval_mean_token_accuracy");
  EXPECT_THAT(best_steps(training, {0.1, 0.3, 0.2, 0.4}), ElementsAre(1, 2, 4));
  training.set_greater_is_better(false);
  EXPECT_THAT(best_steps(training, {0.3, 0.1, 0.2}), ElementsAre(1, 2));
}

// As the name ends in loss.
TEST(BestMetric, TakesTheLowestOfOtherLosses) {
  v1::Training training;
  training.set_metric_for_best_model("aux_loss");
  EXPECT_THAT(best_steps(training, {3, 3, 2, 2.5, 1}), ElementsAre(1, 3, 5));
}

TEST(BestMetric, RefusesAnEvaluationWithoutTheMetric) {
  v1::Training training;
  training.set_metric_for_best_model("eval_rewards/chosen");
  try {
    BestMetric(training).value(metrics(7, 1));
    FAIL() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), "training.metric_for_best_model");
    EXPECT_STREQ(error.what(),
                 "training.metric_for_best_model is \"eval_rewards/chosen\", and the evaluation "
                 "at step 7 has nothing to measure it of");
  }
}

TEST(BestMetric, NeverTakesWhatIsNoNumber) {
  v1::Training training;
  training.set_metric_for_best_model("loss");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(best_steps(training, {nan, 2, nan, 1}), ElementsAre(2, 4));
}

TEST(BestMetric, GivesUpAfterEvaluationsInARowWithoutImprovement) {
  v1::Training training;
  training.set_early_stopping_patience(2);
  EXPECT_EQ(last_step(training, {5, 4, 4.5, 3, 3.1, 3.2, 1}), 6);
  EXPECT_EQ(last_step(training, {5, 4, 4.5, 3, 3.1, 2, 1}), 0);
}

// A best that is not better by the threshold is the best all the same.
TEST(BestMetric, CountsOnlyImprovementsAboveTheThreshold) {
  v1::Training training;
  training.set_early_stopping_patience(2);
  training.set_early_stopping_threshold(0.5);
  EXPECT_EQ(last_step(training, {5, 4.8, 4.6, 1}), 3);
  EXPECT_EQ(last_step(training, {5, 4.8, 4.2, 4.1, 3}), 0);
}

}  // namespace
}  // namespace tessera
