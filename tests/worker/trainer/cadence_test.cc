// What is due after each step, by the flow of transformers' trainer.
#include "worker/trainer/cadence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "proto/spec/rules.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

v1::Training training(void (*change)(v1::Training&)) {
  v1::JobSpec spec;
  change(*spec.mutable_training());
  spec::fill_defaults(spec);
  return spec.training();
}

// The steps of a run of ten after which `what` is due.
std::vector<int> steps(const v1::Training& training, bool Due::* what) {
  const Cadence cadence(training, 10);
  std::vector<int> due;
  for (int step = 1; step <= 10; ++step) {
    if (cadence.after_step(step).*what) due.push_back(step);
  }
  return due;
}

TEST(Cadence, LogsEveryFewStepsAndNotTheRestAtTheEnd) {
  EXPECT_THAT(steps(training([](auto& t) { t.set_logging_steps(4); }), &Due::log),
              ElementsAre(4, 8));
}

TEST(Cadence, LogsTheFirstStepWhereAskedTo) {
  const v1::Training first = training([](auto& t) {
    t.set_logging_first_step(true);
    t.set_logging_steps(5);
  });
  EXPECT_THAT(steps(first, &Due::log), ElementsAre(1, 5, 10));
  const v1::Training epochs = training([](auto& t) { t.set_logging_strategy("epoch"); });
  EXPECT_THAT(steps(epochs, &Due::log), IsEmpty());
  EXPECT_TRUE(Cadence(epochs, 10).after_epoch(1).log);
}

TEST(Cadence, SharesOfStepsAreRoundedUp) {
  const v1::Training shares = training([](auto& t) {
    t.set_logging_steps(0.21);
    t.set_save_steps(0.35);
  });
  EXPECT_THAT(steps(shares, &Due::log), ElementsAre(3, 6, 9));
  EXPECT_THAT(steps(shares, &Due::save), ElementsAre(4, 8, 10));
}

TEST(Cadence, SavesAtTheLastStepWithStepsOnly) {
  EXPECT_THAT(steps(training([](auto& t) { t.set_save_steps(4); }), &Due::save),
              ElementsAre(4, 8, 10));
  for (const char* strategy : {"no", "epoch", "best"}) {
    v1::Training other = training([](auto& t) { t.set_save_steps(4); });
    other.set_save_strategy(strategy);
    EXPECT_THAT(steps(other, &Due::save), IsEmpty()) << strategy;
    EXPECT_EQ(Cadence(other, 10).after_epoch(1).save, other.save_strategy() == "epoch");
  }
}

TEST(Cadence, EvaluatesFromTheDelayOnAndAtTheEnd) {
  const v1::Training delayed = training([](auto& t) {
    t.set_eval_strategy("steps");
    t.set_eval_steps(3);
    t.set_eval_delay(5);
  });
  EXPECT_THAT(steps(delayed, &Due::evaluate), ElementsAre(6, 9, 10));
  const v1::Training epochs = training([](auto& t) {
    t.set_eval_strategy("epoch");
    t.set_eval_delay(1.5);
  });
  EXPECT_THAT(steps(epochs, &Due::evaluate), IsEmpty());
  EXPECT_FALSE(Cadence(epochs, 10).after_epoch(1).evaluate);
  EXPECT_TRUE(Cadence(epochs, 10).after_epoch(2).evaluate);
}

TEST(Cadence, EvaluatesAsOftenAsItLogsWhereNotToldOtherwise) {
  const v1::Training same = training([](auto& t) {
    t.set_eval_strategy("steps");
    t.set_logging_steps(5);
  });
  EXPECT_THAT(steps(same, &Due::evaluate), ElementsAre(5, 10));
}

}  // namespace
}  // namespace tessera
