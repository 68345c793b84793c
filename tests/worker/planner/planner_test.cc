#include "worker/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "proto/spec/fields.h"
#include "proto/spec/rules.h"
#include "worker/errors.h"
#include "worker/planner/techniques.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kMiB = 1 << 20;

v1::JobSpec make_spec() {
  v1::JobSpec spec;
  spec.set_name("j");
  spec.mutable_method()->mutable_sft();
  spec.mutable_model()->set_path("/m");
  spec.mutable_data()->add_train("/d");
  spec.mutable_training()->set_output_dir("/o");
  return spec;
}

// A job whose memory is 100 MiB and 10 MiB a row, or 40 MiB a row without recompute, which is
// faster.
v1::Rehearsal rehearse_rows(const v1::JobSpec& spec) {
  const int64_t rows = spec.training().per_device_train_batch_size();
  const int64_t microbatches = spec.training().gradient_accumulation_steps();
  const bool recomputes = spec.memory().gradient_checkpointing();
  v1::Rehearsal rehearsal;
  rehearsal.set_world_size(spec.parallelism().num_processes());
  rehearsal.set_device(spec.resources().device());
  rehearsal.set_peak_bytes((100 + rows * (recomputes ? 10 : 40)) * kMiB);
  rehearsal.mutable_cost()->set_flops(static_cast<double>(rows * microbatches) *
                                      (recomputes ? 4e9 : 3e9));
  rehearsal.mutable_cost()->set_num_operators(1000 * microbatches);
  return rehearsal;
}

struct Clock {
  double now = 0;
};

PlannerTools tools(Clock& clock, double step = 0.01) {
  DeviceRates rates;
  rates.name = "test";
  rates.source = "made up";
  rates.kind = "cpu";
  rates.flops_float32 = rates.flops_bfloat16 = 1e9;
  rates.operator_seconds = 1e-3;
  return {.rehearse =
              [&clock, step](const v1::JobSpec& spec) {
                clock.now += step;
                return rehearse_rows(spec);
              },
          .seconds = [&clock] { return clock.now; },
          .rates = rates};
}

v1::FieldChange field_change(const std::string& field, const std::string& value) {
  v1::FieldChange change;
  change.set_field(field);
  change.set_value(value);
  return change;
}

std::vector<std::string> titles(const v1::Plan& plan) {
  std::vector<std::string> titles;
  for (const v1::Alternative& alternative : plan.alternatives())
    titles.push_back(alternative.title());
  return titles;
}

TEST(Planner, ShowsTheJobAndWhatEachTechniqueSaves) {
  Clock clock;
  v1::PlanRequest request;
  *request.mutable_spec() = make_spec();
  const v1::Plan plan = make_plan(request, 150 * kMiB, tools(clock));
  EXPECT_EQ(plan.as_written().peak_bytes(), 180 * kMiB);
  EXPECT_FALSE(plan.fits());
  EXPECT_EQ(plan.rates(), "test, made up");
  EXPECT_GT(plan.as_written().cost().seconds(), 0);
  ASSERT_THAT(titles(plan), Contains("microbatches of 1 row, 8 a step"));
  ASSERT_THAT(titles(plan), Contains("gradient checkpointing: none"));
  for (const v1::Alternative& alternative : plan.alternatives()) {
    if (alternative.title() == "microbatches of 1 row, 8 a step") {
      EXPECT_EQ(alternative.saved_bytes(), 70 * kMiB);
      EXPECT_TRUE(alternative.fits());
      EXPECT_GT(alternative.time_ratio(), 1);
      EXPECT_EQ(alternative.changes_size(), 2);
    }
    if (alternative.title() == "gradient checkpointing: none") {
      EXPECT_EQ(alternative.saved_bytes(), -240 * kMiB);
      EXPECT_FALSE(alternative.fits());
      EXPECT_LT(alternative.time_ratio(), 1);
    }
  }
  EXPECT_GT(plan.num_rehearsed(), 4);
}

TEST(Planner, ChoosesTheFastestThatFitsWithItsMargin) {
  for (const auto& [memory, margin, bytes] :
       {std::tuple(1000, 0.05, 420), {150, 0.0, 140}, {150, 0.05, 140}, {150, 0.1, 120}}) {
    Clock clock;
    v1::PlanRequest request;
    *request.mutable_spec() = make_spec();
    request.mutable_spec()->mutable_memory()->set_auto_margin(margin);
    const v1::Plan plan = make_plan(request, memory * kMiB, tools(clock));
    ASSERT_TRUE(plan.has_choice()) << memory;
    EXPECT_EQ(plan.choice().rehearsal().peak_bytes(), bytes * kMiB) << memory << " " << margin;
    EXPECT_TRUE(plan.choice().exact());
    EXPECT_FALSE(plan.choice().overrides());
  }
}

TEST(Planner, LeavesWhatTheJobSets) {
  Clock clock;
  v1::PlanRequest request;
  *request.mutable_spec() = make_spec();
  request.mutable_spec()->mutable_training()->set_per_device_train_batch_size(8);
  const v1::Plan plan = make_plan(request, 150 * kMiB, tools(clock));
  EXPECT_FALSE(plan.has_choice());
  bool shown = false;
  for (const v1::Alternative& alternative : plan.alternatives()) {
    shown |= alternative.overrides() && alternative.fits();
  }
  EXPECT_TRUE(shown) << "what would make it fit is shown all the same";
}

TEST(Planner, NextPlanNeedsLessThanTheOneThatFailed) {
  Clock clock;
  v1::PlanRequest request;
  *request.mutable_spec() = make_spec();
  *request.mutable_failed() = make_spec();
  request.mutable_failed()->mutable_training()->set_per_device_train_batch_size(4);
  request.mutable_failed()->mutable_training()->set_gradient_accumulation_steps(2);
  const v1::Plan plan = make_plan(request, 1000 * kMiB, tools(clock));
  ASSERT_TRUE(plan.has_choice());
  EXPECT_EQ(plan.choice().rehearsal().peak_bytes(), 120 * kMiB);
  EXPECT_EQ(plan.failed_peak_bytes(), 140 * kMiB);
  EXPECT_EQ(plan.limit_bytes(), 133 * kMiB);
}

TEST(Planner, CountsWithWhatEarlierJobsMeasured) {
  Clock clock;
  v1::PlanRequest request;
  *request.mutable_spec() = make_spec();
  request.mutable_spec()->mutable_memory()->set_auto_margin(0);
  request.set_peak_ratio(1.25);
  const v1::Plan plan = make_plan(request, 200 * kMiB, tools(clock));
  EXPECT_FALSE(plan.fits()) << "180 MiB may become 225";
  EXPECT_EQ(plan.peak_ratio(), 1.25);
  EXPECT_EQ(plan.limit_bytes(), 160 * kMiB);
  EXPECT_EQ(plan.choice().rehearsal().peak_bytes(), 140 * kMiB);
}

TEST(Planner, EndsInTime) {
  Clock clock;
  v1::PlanRequest request;
  *request.mutable_spec() = make_spec();
  request.set_max_seconds(3);
  const v1::Plan plan = make_plan(request, 150 * kMiB, tools(clock, /*step=*/1));
  EXPECT_LE(plan.num_rehearsed(), 4);
  EXPECT_LE(plan.seconds(), 4);
}

TEST(Planner, DataThatAreReadSlowlyTakeNoTimeFromTheSearch) {
  Clock clock;
  PlannerTools slow = tools(clock);
  slow.rehearse = [&clock, rehearse = slow.rehearse, first = true](const auto& spec) mutable {
    if (std::exchange(first, false)) clock.now += 20;
    return rehearse(spec);
  };
  v1::PlanRequest request;
  *request.mutable_spec() = make_spec();
  request.set_max_seconds(3);
  const v1::Plan plan = make_plan(request, 150 * kMiB, slow);
  EXPECT_GT(plan.alternatives_size(), 4);
  EXPECT_EQ(plan.choice().rehearsal().peak_bytes(), 140 * kMiB);
  EXPECT_GT(plan.seconds(), 20);
}

TEST(Planner, WithoutMemoryOrRatesShowsOnlyBytes) {
  Clock clock;
  PlannerTools unknown = tools(clock);
  unknown.rates.reset();
  v1::PlanRequest request;
  *request.mutable_spec() = make_spec();
  const v1::Plan plan = make_plan(request, 0, unknown);
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.device_memory_bytes(), 0);
  EXPECT_EQ(plan.limit_bytes(), 0);
  EXPECT_EQ(plan.as_written().cost().seconds(), 0);
  EXPECT_EQ(plan.alternatives(0).time_ratio(), 0);
  EXPECT_EQ(plan.choice().title(), "the job as written");
}

TEST(Planner, RefusesASpecThatBreaksARule) {
  Clock clock;
  v1::PlanRequest request;
  *request.mutable_spec() = make_spec();
  request.mutable_spec()->mutable_training()->set_learning_rate(-1);
  EXPECT_THAT([&] { make_plan(request, 0, tools(clock)); },
              ThrowsMessage<UserError>(HasSubstr("learning_rate")));
}

TEST(Techniques, SplitNoStepThatDrawsRandomNumbers) {
  v1::JobSpec spec = make_spec();
  spec.mutable_model()->set_hidden_dropout(0.1);
  spec::fill_defaults(spec);
  for (const Knob& knob : knobs_of(spec)) EXPECT_NE(knob.name, "microbatches");
}

TEST(Techniques, SplitNoStepWhereTheLastRowsAreDropped) {
  v1::JobSpec spec = make_spec();
  spec.mutable_training()->set_dataloader_drop_last(true);
  spec::fill_defaults(spec);
  for (const Knob& knob : knobs_of(spec)) EXPECT_NE(knob.name, "microbatches");
}

TEST(Techniques, AMistypedFieldIsNoSetting) {
  const Setting typo = {.title = "typo", .changes = {field_change("memory.shading", "zero1")}};
  EXPECT_THAT([&] { with_setting(make_spec(), typo); },
              ThrowsMessage<std::logic_error>(HasSubstr("memory.shading")));
}

TEST(Techniques, ChangeSomethingAndAreAllowed) {
  v1::JobSpec spec = make_spec();
  spec.mutable_parallelism()->set_num_processes(2);
  spec::fill_defaults(spec);
  ASSERT_TRUE(is_allowed(spec));
  const std::vector<Knob> knobs = knobs_of(spec);
  EXPECT_GE(knobs.size(), 3U);
  for (const Knob& knob : knobs) {
    for (const Setting& setting : knob.settings) {
      const v1::JobSpec changed = with_setting(spec, setting);
      EXPECT_TRUE(is_allowed(changed)) << setting.title;
      EXPECT_NE(changed.SerializeAsString(), spec.SerializeAsString()) << setting.title;
      for (const v1::FieldChange& change : setting.changes) {
        EXPECT_EQ(spec::get_field(changed, change.field()), change.value()) << change.field();
      }
    }
  }
}

int64_t rows_of_step(const v1::JobSpec& spec) {
  const v1::Parallelism& mesh = spec.parallelism();
  return int64_t{mesh.dp_replicate_size()} * mesh.dp_shard_size() *
         spec.training().per_device_train_batch_size() *
         spec.training().gradient_accumulation_steps();
}

TEST(Techniques, OtherMeshesHaveTheSameRanksAndRows) {
  v1::JobSpec spec = make_spec();
  spec.mutable_parallelism()->set_num_processes(8);
  spec.mutable_parallelism()->set_dp_replicate_size(2);
  spec.mutable_parallelism()->set_cp_size(2);
  spec.mutable_training()->set_per_device_train_batch_size(3);
  spec.mutable_training()->set_gradient_accumulation_steps(2);
  spec::fill_defaults(spec);
  std::vector<std::string> found;
  for (const Knob& knob : knobs_of(spec)) {
    for (const Setting& setting : knob.settings) {
      const v1::JobSpec other = with_setting(spec, setting);
      EXPECT_EQ(rows_of_step(other), rows_of_step(spec)) << setting.title;
      EXPECT_TRUE(is_allowed(other)) << setting.title;
      if (knob.name == "mesh") found.push_back(setting.title);
    }
  }
  EXPECT_THAT(found, ::testing::UnorderedElementsAre("mesh: dp_replicate 2 x dp_shard 1 x cp 4",
                                                     "mesh: dp_replicate 4 x dp_shard 1 x cp 2",
                                                     "mesh: dp_replicate 2 x dp_shard 4 x cp 1",
                                                     "mesh: dp_replicate 1 x dp_shard 4 x cp 2"));
}

TEST(Techniques, OneRankHasNoOtherMesh) {
  v1::JobSpec spec = make_spec();
  spec::fill_defaults(spec);
  for (const Knob& knob : knobs_of(spec)) {
    EXPECT_NE(knob.name, "mesh");
    EXPECT_NE(knob.name, "context");
  }
}

}  // namespace
}  // namespace tessera
