// Jobs before they are accepted: rehearsed, planned, and compared with what they held.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "tests/server/answers.h"
#include "tests/server/service.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using v1::Job;

v1::JobSpec auto_spec() {
  v1::JobSpec spec = make_spec();
  spec.mutable_memory()->set_auto_(true);
  return spec;
}

v1::JobSpec bounded_spec() {
  v1::JobSpec spec = make_spec();
  spec.mutable_resources()->set_device_memory("80MiB");
  return spec;
}

TEST(Admission, PutsTheRehearsalOnTheJob) {
  Service service;
  Agent agent(service, "n1", 1);
  const v1::Job job = accepted(service, agent, make_spec());
  EXPECT_EQ(job.rehearsal().peak_bytes(), 100 * kMiB);
  EXPECT_THAT(text_of(service.events(job.id())), HasSubstr("at most 100.0 MiB of tensors"));
}

TEST(Admission, AsksTheMachineThatHasTheFewestQuestions) {
  Service service;
  Agent first(service, "n1", 1), second(service, "n2", 1);
  v1::Probe waiting;
  const auto outer = submit_while(service, make_spec(), [&] {
    waiting = first.next(v1::SessionResponse::kProbe).probe();
    const std::jthread machine([&] { answer_check(second, 100 * kMiB); });
    service.submit(make_spec());
    v1::SessionRequest answer;
    answer.mutable_probed()->set_probe_id(waiting.probe_id());
    answer.mutable_probed()->mutable_checked();
    first.send(answer);
  });
  EXPECT_TRUE(outer.status.ok()) << outer.status.error_message();
}

TEST(Admission, AutoPutsTheChoiceAndItsReasonOnTheJob) {
  Service service;
  Agent agent(service, "n1", 1);
  v1::PlanRequest asked;
  const auto [status, job] = submit_while(service, auto_spec(), [&] {
    answer_check(agent, 100 * kMiB);
    asked = answer_plan(agent, 60 * kMiB);
  });
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(asked.spec().training().has_learning_rate()) << "only what the user wrote";
  EXPECT_EQ(job.spec().training().per_device_train_batch_size(), 1);
  EXPECT_EQ(job.spec().training().gradient_accumulation_steps(), 8);
  EXPECT_EQ(job.spec().training().learning_rate(), 2e-5) << "defaults are filled in";
  EXPECT_EQ(job.planned_size(), 2);
  EXPECT_EQ(job.rehearsal().peak_bytes(), 60 * kMiB);
  EXPECT_THAT(
      text_of(service.events(job.id())),
      HasSubstr("planned: microbatches of 1 row, 8 a step; a rank will hold at most 60.0 "
                "MiB of 80.0 MiB, where the job as written needs 100.0 MiB, in 1.25 times"));
}

TEST(Admission, AutoTakesAJobThatFitsAlthoughNothingLeavesTheMarginFree) {
  Service service;
  Agent agent(service, "n1", 1);
  const auto [status, job] = submit_while(service, auto_spec(), [&] {
    answer_check(agent, 100 * kMiB);
    v1::Plan plan = plan_of(0);
    plan.set_device_memory_bytes(102 * kMiB);
    plan.set_fits(true);
    answer_plan(agent, plan);
  });
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(job.planned_size(), 0);
  EXPECT_THAT(text_of(service.events(job.id())), HasSubstr("it fits as written"));
}

TEST(Admission, RefusesWhatFitsNowhereWithWhatWould) {
  Service service;
  Agent agent(service, "n1", 1);
  const grpc::Status status = submit_while(service, auto_spec(), [&] {
                                answer_check(agent, 100 * kMiB);
                                answer_plan(agent, 0);
                              }).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(error_info(status).reason(), "OUT_OF_MEMORY");
  EXPECT_THAT(status.error_message(),
              HasSubstr("a rank of the job needs 100.0 MiB for tensors, and may have 80.0 MiB"));
  EXPECT_THAT(status.error_message(), HasSubstr("optimizer states in 8 bits: 70.0 MiB"));
}

TEST(Admission, RefusesByWhatEarlierJobsMeasuredAndSaysSo) {
  Service service;
  Agent agent(service, "n1", 1);
  v1::PlanRequest asked;
  const grpc::Status status = submit_while(service, auto_spec(), [&] {
                                answer_check(agent, 100 * kMiB);
                                v1::Plan plan = plan_of(0);
                                plan.set_device_memory_bytes(110 * kMiB);
                                plan.set_peak_ratio(1.2);
                                asked = answer_plan(agent, plan);
                              }).status;
  EXPECT_EQ(asked.peak_ratio(), 1);
  EXPECT_THAT(status.error_message(),
              HasSubstr("needs 100.0 MiB for tensors, 120.0 MiB as earlier jobs on such a device "
                        "measured, and may have 110.0 MiB"));
}

TEST(Admission, RefusesAMisfitThoughNoPlanCouldBeMade) {
  Service service;
  Agent agent(service, "n1", 1);
  const grpc::Status status = submit_while(service, bounded_spec(), [&] {
                                answer_check(agent, 100 * kMiB);
                                break_down(agent);
                              }).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(),
              HasSubstr("may have 80.0 MiB; what would make it fit is not known: it broke"));
}

TEST(Admission, AJobOfWhichNoPlanCouldBeMadeIsAccepted) {
  Service service;
  Agent agent(service, "n1", 1);
  const auto [status, job] = submit_while(service, auto_spec(), [&] {
    answer_check(agent, 100 * kMiB);
    break_down(agent);
  });
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(text_of(service.events(job.id())), HasSubstr("not planned: it broke"));
}

TEST(Admission, ABusyAgentIsNoVerdict) {
  Service service;
  Agent agent(service, "n1", 1);
  const auto [status, job] = submit_while(service, make_spec(), [&] { leave_unanswered(agent); });
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(text_of(service.events(job.id())), HasSubstr("accepted unchecked: busy"));
}

TEST(Admission, ACheckThatBreaksIsNoMistakeOfTheUser) {
  Service service;
  Agent agent(service, "n1", 1);
  const grpc::Status status = submit_while(service, make_spec(), [&] { break_down(agent); }).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(error_info(status).reason(), "PROBE_FAILED");
  EXPECT_EQ(status.error_message(), "it broke");
}

TEST(Admission, APlanOfFieldsThatAreNoneIsRefused) {
  Service service;
  Agent agent(service, "n1", 1);
  const grpc::Status status = submit_while(service, auto_spec(), [&] {
                                answer_check(agent, 100 * kMiB);
                                v1::Plan plan = plan_of(60 * kMiB);
                                plan.mutable_choice()->mutable_changes(0)->set_field("memory.new");
                                answer_plan(agent, plan);
                              }).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), HasSubstr("memory.new"));
}

TEST(Admission, PlansForTheGpuThatIsThereWhateverItsModel) {
  Service service;
  Agent agent(service, "n1", devices(1, "cuda", "Tesla V100-SXM2-16GB", 16 * 1024 * kMiB));
  v1::JobSpec spec = auto_spec();
  spec.mutable_resources()->set_device("cuda");
  v1::PlanRequest asked;
  const grpc::Status status = submit_while(service, spec, [&] {
                                answer_check(agent, 100 * kMiB);
                                asked = answer_plan(agent, 60 * kMiB);
                              }).status;
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(asked.has_device()) << "the user named none";
  EXPECT_EQ(asked.device_model(), "Tesla V100-SXM2-16GB");
  EXPECT_EQ(asked.device_memory(), std::to_string(15 * 1024 * kMiB));
}

void hold(Agent& agent, const v1::RunId& run, int step, int64_t bytes) {
  v1::TrainerEvent event;
  event.mutable_memory()->set_step(step);
  event.mutable_memory()->set_peak_bytes(bytes);
  agent.event(run, 0, event);
}

TEST(Peak, IsComparedWithTheRehearsal) {
  Service service;
  Agent agent(service, "n1", 1);
  v1::Job job = accepted(service, agent, make_spec());
  const v1::RunId run = agent.prepare().run();
  agent.started(run, 0);
  hold(agent, run, 1, 80 * kMiB);
  EXPECT_FALSE(service.get(job.id()).has_peak());
  hold(agent, run, 2, 90 * kMiB);
  const v1::PeakMeasured first = service.get(job.id()).peak();
  EXPECT_EQ(first.measured_bytes(), 90 * kMiB);
  EXPECT_EQ(first.predicted_bytes(), 100 * kMiB);
  EXPECT_EQ(first.device(), "cpu");
  EXPECT_EQ(first.device_ratio(), 1);
  hold(agent, run, 3, 140 * kMiB);
  agent.finished(run, 0);
  agent.ended(run);
  job = service.await(job.id(), Job::SUCCEEDED);
  EXPECT_EQ(job.peak().measured_bytes(), 140 * kMiB);
  EXPECT_DOUBLE_EQ(job.peak().device_ratio(), 1 + 0.25 * 0.4);
  int peaks = 0;
  for (const v1::Event& event : service.events(job.id())) peaks += event.has_peak();
  EXPECT_EQ(peaks, 1);
}

// Restarted after its last checkpoint, an attempt takes no step.
TEST(Peak, OfAnAttemptThatOnlyLoadsIsNotTheJobs) {
  Service service;
  Agent agent(service, "n1", 1);
  v1::Job job = accepted(service, agent, make_spec());
  const v1::RunId first = agent.prepare().run();
  agent.next(v1::SessionResponse::kStart);
  agent.started(first, 0);
  hold(agent, first, 2, 90 * kMiB);
  agent.exited(first, 0, v1::Failure::NETWORK, "a peer was lost");
  agent.ended(first);
  const v1::RunId second = agent.prepare().run();
  agent.next(v1::SessionResponse::kStart);
  agent.started(second, 0, /*resumed_step=*/5);
  hold(agent, second, 5, 30 * kMiB);
  agent.finished(second, 0);
  agent.ended(second);
  job = service.await(job.id(), Job::SUCCEEDED);
  EXPECT_EQ(job.peak().measured_bytes(), 90 * kMiB);
  EXPECT_DOUBLE_EQ(job.peak().device_ratio(), 1 - 0.25 * 0.1);
}

}  // namespace
}  // namespace tessera::server
