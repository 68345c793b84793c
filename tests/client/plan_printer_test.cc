#include "client/cli/plan_printer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = 1 << 20;

void add_owner(v1::Rehearsal& rehearsal, const char* name, int64_t mib) {
  v1::OwnerBytes& owner = *rehearsal.add_owners();
  owner.set_owner(name);
  owner.set_at_peak_bytes(mib * kMiB);
}

void add_alternative(v1::Plan& plan, const char* title, int64_t mib, double time, bool fits) {
  v1::Alternative& alternative = *plan.add_alternatives();
  alternative.set_title(title);
  alternative.mutable_rehearsal()->set_peak_bytes(mib * kMiB);
  alternative.set_saved_bytes(plan.as_written().peak_bytes() - mib * kMiB);
  alternative.set_time_ratio(time);
  alternative.set_fits(fits);
  alternative.set_exact(true);
}

v1::PlanJobResponse sample() {
  v1::PlanJobResponse response;
  v1::Plan& plan = *response.mutable_plan();
  v1::Rehearsal& written = *plan.mutable_as_written();
  written.set_world_size(2);
  written.set_device("cpu");
  written.set_num_parameters(26'000'000);
  written.set_num_trainable_parameters(26'000'000);
  written.set_num_tokens(2048);
  written.set_peak_bytes(200 * kMiB);
  add_owner(written, "activations", 50);
  add_owner(written, "optimizer", 150);
  plan.set_device_memory_bytes(160 * kMiB);
  plan.set_rates("made up, measured");
  plan.set_num_rehearsed(12);
  plan.set_seconds(0.5);
  add_alternative(plan, "gradient checkpointing: full", 150, 1.3, true);
  add_alternative(plan, "optimizer states in 8 bits", 90, 1.02, true);
  add_alternative(plan, "gradient checkpointing: none", 300, 0.75, false);
  plan.mutable_alternatives(0)->set_overrides(true);
  plan.mutable_alternatives(1)->set_exact(false);
  v1::Alternative& choice = *plan.mutable_choice();
  choice.set_title("microbatches of 4 rows, 2 a step");
  choice.mutable_rehearsal()->set_peak_bytes(155 * kMiB);
  choice.set_time_ratio(1.05);
  v1::FieldChange& change = *choice.add_changes();
  change.set_field("training.per_device_train_batch_size");
  change.set_value("4");
  v1::DeviceFit& fit = *response.add_devices();
  fit.set_kind("cpu");
  fit.set_model("Some Processor");
  fit.set_num_devices(8);
  fit.set_memory_bytes(16 * 1024 * kMiB);
  return response;
}

std::string printed(const v1::PlanJobResponse& response) {
  std::ostringstream out, err;
  print_plan(Terminal{.out = out, .err = err}, "demo", response);
  return out.str();
}

constexpr const char* kGolden =
    R"(demo: 2 ranks on cpu, 26.0M parameters (26.0M trained), 2048 tokens a step

peak of a rank, as written      bytes  share
  optimizer                 150.0 MiB  75.0%
  activations                50.0 MiB  25.0%
  total                     200.0 MiB
does not fit in 160.0 MiB

PRESENT  MODEL           DEVICES    MEMORY  FITS
cpu      Some Processor        8  16.0 GiB  yes

TECHNIQUE                           PEAK       SAVES   TIME  FITS
gradient checkpointing: full'  150.0 MiB    50.0 MiB  x1.30  yes
optimizer states in 8 bits~     90.0 MiB   110.0 MiB  x1.02  yes
gradient checkpointing: none   300.0 MiB  -100.0 MiB  x0.75  no
': the job file says otherwise, so memory.auto leaves it
~: changes the loss by more than rounding

memory.auto takes: microbatches of 4 rows, 2 a step
  training.per_device_train_batch_size: 4
  peak 155.0 MiB, a step in 1.05 times the time
12 rehearsals in 0.5 s; times predicted for made up, measured
)";

TEST(PlanPrinter, ShowsTheJobTheNodesAndWhatWouldMakeItSmaller) {
  EXPECT_EQ(printed(sample()), kGolden);
}

TEST(PlanPrinter, SaysWhatPeaksCountWith) {
  v1::PlanJobResponse response = sample();
  response.mutable_plan()->set_peak_ratio(1.12);
  EXPECT_THAT(printed(response), HasSubstr("does not fit in 160.0 MiB; peaks count 1.12 times"));
}

TEST(PlanPrinter, SaysWhatIsNotKnown) {
  v1::PlanJobResponse response = sample();
  response.clear_devices();
  v1::Plan& plan = *response.mutable_plan();
  plan.clear_device_memory_bytes();
  plan.clear_rates();
  plan.clear_choice();
  plan.mutable_alternatives(0)->set_time_ratio(0);
  const std::string text = printed(response);
  EXPECT_THAT(text, HasSubstr("what a rank may hold is not known; --device-memory says"));
  EXPECT_THAT(text, HasSubstr("times are not predicted: no rates are known"));
  EXPECT_THAT(text, HasSubstr("no combination of techniques was found that fits"));
  EXPECT_THAT(text, Not(HasSubstr("PRESENT")));
  EXPECT_THAT(text, Not(HasSubstr("FITS")));
}

TEST(PlanPrinter, SaysWhereThePeakIsABound) {
  v1::PlanJobResponse response = sample();
  v1::Rehearsal& rehearsal = *response.mutable_plan()->mutable_as_written();
  EXPECT_THAT(printed(response), Not(HasSubstr("documents")));
  EXPECT_THAT(printed(response), Not(HasSubstr("bound")));
  rehearsal.set_assumes_full_rows(true);
  EXPECT_THAT(printed(response), HasSubstr("the documents were not read"));
  add_owner(rehearsal, "checkpoint", 10);
  EXPECT_THAT(printed(response), HasSubstr("the peak is a bound"));
}

}  // namespace
}  // namespace tessera::cli
