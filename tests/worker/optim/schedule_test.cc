// Learning rates against those of transformers' schedules; see make_schedules.py.
#include "worker/optim/schedule.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "worker/optim/plateau.h"

namespace tessera {
namespace {

constexpr double kTolerance = 1e-12;  // relative

struct Case {
  v1::Training training;
  int64_t total_steps;
  std::vector<double> metrics, rates;
};

std::vector<double> numbers(const google::protobuf::Struct& line, const std::string& key) {
  std::vector<double> values;
  const auto found = line.fields().find(key);
  if (found == line.fields().end()) return values;
  for (const auto& value : found->second.list_value().values())
    values.push_back(value.number_value());
  return values;
}

std::vector<Case> read_cases() {
  std::vector<Case> cases;
  std::ifstream file(TESSERA_SCHEDULES);
  for (std::string text; std::getline(file, text);) {
    google::protobuf::Struct line;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &line).ok()) << text;
    Case one{{}, 0, numbers(line, "metrics"), numbers(line, "rates")};
    one.total_steps = static_cast<int64_t>(line.fields().at("total_steps").number_value());
    std::string training;
    EXPECT_TRUE(google::protobuf::util::MessageToJsonString(
                    line.fields().at("training").struct_value(), &training)
                    .ok());
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(training, &one.training).ok())
        << training;
    cases.push_back(std::move(one));
  }
  return cases;
}

TEST(Schedule, GivesTheRatesOfTransformers) {
  int checked = 0;
  for (const Case& one : read_cases()) {
    if (!one.metrics.empty()) continue;
    const Schedule schedule(one.training, one.total_steps);
    for (int64_t step = 0; step < one.total_steps; ++step) {
      EXPECT_NEAR(schedule.learning_rate(step), one.rates[step], kTolerance * one.rates[step])
          << "step " << step << " of " << one.training.ShortDebugString();
    }
    ++checked;
  }
  EXPECT_GE(checked, 30);
}

TEST(Plateau, GivesTheRatesOfTorch) {
  int checked = 0;
  for (const Case& one : read_cases()) {
    if (one.metrics.empty()) continue;
    v1::PlateauState state = initial_plateau(one.training);
    for (size_t i = 0; i <= one.metrics.size(); ++i) {
      EXPECT_NEAR(state.learning_rate(), one.rates[i], kTolerance * one.rates[i])
          << "evaluation " << i << " of " << one.training.ShortDebugString();
      if (i < one.metrics.size()) observe_metric(one.training, one.metrics[i], state);
    }
    ++checked;
  }
  EXPECT_GE(checked, 5);
}

TEST(Schedule, TakesAWarmupRatioWhereWarmupStepsIsZero) {
  v1::Training training;
  training.set_learning_rate(1);
  training.set_lr_scheduler_type("constant_with_warmup");
  training.set_warmup_ratio(0.21);
  EXPECT_EQ(Schedule(training, 10).learning_rate(2), 2.0 / 3);
  training.set_warmup_steps(4);
  EXPECT_EQ(Schedule(training, 10).learning_rate(2), 0.5);
}

}  // namespace
}  // namespace tessera
