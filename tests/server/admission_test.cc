// Jobs before they are accepted, and after they ran out of memory: rehearsed, planned, compared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/server/service.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using v1::Job;

constexpr int64_t kMiB = 1 << 20;

// What an agent's trainer says: 100 MiB as written, 60 MiB with one microbatch a row.
v1::CheckResult rehearsed(int64_t bytes) {
  v1::CheckResult result;
  result.mutable_rehearsal()->set_peak_bytes(bytes);
  result.mutable_rehearsal()->set_device("cpu");
  return result;
}

v1::Plan plan_of(int64_t chosen_bytes) {
  v1::Plan plan;
  plan.mutable_as_written()->set_peak_bytes(100 * kMiB);
  plan.mutable_as_written()->set_world_size(1);
  plan.mutable_as_written()->set_device("cpu");
  plan.set_device_memory_bytes(80 * kMiB);
  plan.set_num_rehearsed(7);
  v1::Alternative& inexact = *plan.add_alternatives();
  inexact.set_title("optimizer states in 8 bits");
  inexact.mutable_rehearsal()->set_peak_bytes(70 * kMiB);
  inexact.set_saved_bytes(30 * kMiB);
  inexact.set_time_ratio(1.1);
  inexact.set_fits(true);
  if (chosen_bytes == 0) return plan;
  v1::Alternative& choice = *plan.mutable_choice();
  choice.set_title("microbatches of 1 row, 8 a step");
  choice.mutable_rehearsal()->set_peak_bytes(chosen_bytes);
  choice.set_time_ratio(1.25);
  for (const auto& [field, value] : {std::pair("training.per_device_train_batch_size", "1"),
                                     {"training.gradient_accumulation_steps", "8"}}) {
    v1::FieldChange& change = *choice.add_changes();
    change.set_field(field);
    change.set_value(value);
  }
  return plan;
}

// Answers the next probe with what `answer` makes of it.
v1::Probe answer(Agent& agent, const std::function<void(const v1::Probe&, v1::Probed&)>& answer) {
  const v1::Probe probe = agent.next(v1::SessionResponse::kProbe).probe();
  v1::SessionRequest request;
  request.mutable_probed()->set_probe_id(probe.probe_id());
  answer(probe, *request.mutable_probed());
  agent.send(request);
  return probe;
}

void answer_check(Agent& agent, int64_t bytes) {
  answer(agent, [&](const v1::Probe&, v1::Probed& probed) {
    *probed.mutable_checked() = rehearsed(bytes);
  });
}

v1::PlanRequest answer_plan(Agent& agent, int64_t chosen_bytes) {
  return answer(agent,
                [&](const v1::Probe&, v1::Probed& probed) {
                  *probed.mutable_planned() = plan_of(chosen_bytes);
                })
      .plan();
}

v1::JobSpec auto_spec() {
  v1::JobSpec spec = make_spec();
  spec.mutable_memory()->set_auto_(true);
  return spec;
}

grpc::Status submit(Service& service, const v1::JobSpec& spec, v1::Job& job) {
  v1::SubmitJobRequest request;
  v1::SubmitJobResponse response;
  *request.mutable_spec() = spec;
  request.set_request_id("r");
  const grpc::Status status = service.submit(request, &response);
  job = response.job();
  return status;
}

std::string text_of(const std::vector<v1::Event>& events) {
  std::string text;
  for (const v1::Event& event : events) {
    text += event.log().text() + event.plan().reason() + event.state().reason() + "\n";
  }
  return text;
}

TEST(Admission, PutsTheRehearsalOnTheJob) {
  Service service;
  Agent agent(service, "n1", 1);
  std::thread machine([&] { answer_check(agent, 100 * kMiB); });
  v1::Job job;
  EXPECT_TRUE(submit(service, make_spec(), job).ok());
  machine.join();
  EXPECT_EQ(job.rehearsal().peak_bytes(), 100 * kMiB);
  EXPECT_THAT(text_of(service.events(job.id())), HasSubstr("at most 100.0 MiB of tensors"));
}

TEST(Admission, AutoPutsTheChoiceAndItsReasonOnTheJob) {
  Service service;
  Agent agent(service, "n1", 1);
  v1::PlanRequest asked;
  std::thread machine([&] {
    answer_check(agent, 100 * kMiB);
    asked = answer_plan(agent, 60 * kMiB);
  });
  v1::Job job;
  EXPECT_TRUE(submit(service, auto_spec(), job).ok());
  machine.join();
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

TEST(Admission, RefusesWhatFitsNowhereWithWhatWould) {
  Service service;
  Agent agent(service, "n1", 1);
  std::thread machine([&] {
    answer_check(agent, 100 * kMiB);
    answer_plan(agent, 0);
  });
  v1::Job job;
  const grpc::Status status = submit(service, auto_spec(), job);
  machine.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(error_info(status).reason(), "OUT_OF_MEMORY");
  EXPECT_THAT(status.error_message(),
              HasSubstr("a rank of the job needs 100.0 MiB for tensors, and may have 80.0 MiB"));
  EXPECT_THAT(status.error_message(), HasSubstr("optimizer states in 8 bits: 70.0 MiB"));
}

TEST(Admission, AJobOfWhichNoPlanCouldBeMadeIsAccepted) {
  Service service;
  Agent agent(service, "n1", 1);
  std::thread machine([&] {
    answer_check(agent, 100 * kMiB);
    answer(agent, [](const v1::Probe&, v1::Probed& probed) {
      probed.mutable_failure()->set_kind(v1::Failure::BUG);
      probed.mutable_failure()->set_message("it broke");
    });
  });
  v1::Job job;
  EXPECT_TRUE(submit(service, auto_spec(), job).ok());
  machine.join();
  EXPECT_THAT(text_of(service.events(job.id())), HasSubstr("not planned: it broke"));
}

void hold(Agent& agent, const v1::RunId& run, int step, int64_t bytes) {
  v1::TrainerEvent event;
  event.mutable_memory()->set_step(step);
  event.mutable_memory()->set_peak_bytes(bytes);
  agent.event(run, 0, event);
}

TEST(Admission, ComparesThePeakWithTheRehearsal) {
  Service service;
  Agent agent(service, "n1", 1);
  std::thread machine([&] { answer_check(agent, 100 * kMiB); });
  v1::Job job;
  ASSERT_TRUE(submit(service, make_spec(), job).ok());
  machine.join();
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

v1::JobSpec replanned_spec() {
  v1::JobSpec spec = make_spec();
  spec.mutable_memory()->set_on_oom("replan");
  return spec;
}

// Runs the job out of memory in its next attempt.
v1::RunId run_out(Agent& agent) {
  const v1::RunId run = agent.prepare().run();
  agent.next(v1::SessionResponse::kStart);
  agent.started(run, 0);
  agent.exited(run, 0, v1::Failure::MEMORY, "out of device memory");
  agent.ended(run);
  return run;
}

TEST(Replan, GoesOnWithTheNextPlanAfterALackOfMemory) {
  Service service;
  Agent agent(service, "n1", 1);
  std::thread machine([&] { answer_check(agent, 100 * kMiB); });
  v1::Job job;
  ASSERT_TRUE(submit(service, replanned_spec(), job).ok());
  machine.join();
  run_out(agent);
  const v1::PlanRequest asked = answer_plan(agent, 60 * kMiB);
  EXPECT_EQ(asked.failed().training().learning_rate(), 2e-5);
  EXPECT_FALSE(asked.spec().training().has_learning_rate());
  const v1::Prepare again = agent.prepare();
  EXPECT_EQ(again.run().attempt(), 2);
  EXPECT_EQ(again.spec().training().per_device_train_batch_size(), 1);
  job = service.get(job.id());
  EXPECT_EQ(job.rehearsal().peak_bytes(), 60 * kMiB);
  EXPECT_EQ(job.planned_size(), 2);
  const std::string text = text_of(service.events(job.id()));
  EXPECT_THAT(text, HasSubstr("out of memory; looking for another plan"));
  EXPECT_THAT(text, HasSubstr("planned: microbatches of 1 row, 8 a step"));
}

TEST(Replan, FailsWhereNoOtherPlanFits) {
  Service service;
  Agent agent(service, "n1", 1);
  std::thread machine([&] { answer_check(agent, 100 * kMiB); });
  v1::Job job;
  ASSERT_TRUE(submit(service, replanned_spec(), job).ok());
  machine.join();
  run_out(agent);
  answer_plan(agent, 0);
  job = service.await(job.id(), Job::FAILED);
  EXPECT_EQ(job.failure().kind(), v1::Failure::MEMORY);
  EXPECT_THAT(job.failure().message(), HasSubstr("there is no other plan"));
}

TEST(Replan, WaitsForAnAgentAcrossACrash) {
  Service service;
  v1::Job job;
  {
    Agent agent(service, "n1", 1);
    std::thread machine([&] { answer_check(agent, 100 * kMiB); });
    ASSERT_TRUE(submit(service, replanned_spec(), job).ok());
    machine.join();
    run_out(agent);
    agent.next(v1::SessionResponse::kProbe);
  }
  service.crash();
  service.start();
  Agent agent(service, "n1", 1);
  EXPECT_TRUE(answer_plan(agent, 60 * kMiB).has_failed());
  EXPECT_EQ(agent.prepare().spec().training().per_device_train_batch_size(), 1);
}

TEST(Replan, AJobThatWaitsForAPlanCanBeCancelled) {
  Service service;
  Agent agent(service, "n1", 1);
  std::thread machine([&] { answer_check(agent, 100 * kMiB); });
  v1::Job job;
  ASSERT_TRUE(submit(service, replanned_spec(), job).ok());
  machine.join();
  run_out(agent);
  agent.next(v1::SessionResponse::kProbe);
  EXPECT_EQ(service.cancel(job.id()).state(), Job::CANCELLED);
}

TEST(Plan, IsMadeByAnAgentAndComparedWithTheNodes) {
  Service service;
  Agent agent(service, "n1", 2);
  std::thread machine([&] { answer_plan(agent, 60 * kMiB); });
  grpc::ClientContext context;
  v1::PlanJobRequest request;
  v1::PlanJobResponse response;
  *request.mutable_plan()->mutable_spec() = make_spec();
  const grpc::Status status = service.stub().PlanJob(&context, request, &response);
  machine.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.plan().choice().rehearsal().peak_bytes(), 60 * kMiB);
  ASSERT_EQ(response.devices_size(), 1);
  EXPECT_EQ(response.devices(0).num_devices(), 2);
  EXPECT_EQ(response.devices(0).obstacle(), "a rank needs 100.0 MiB") << "the node has no memory";
}

TEST(Plan, NeedsAnAgentAndAGoodSpec) {
  Service service;
  grpc::ClientContext none, bad;
  v1::PlanJobRequest request;
  v1::PlanJobResponse response;
  *request.mutable_plan()->mutable_spec() = make_spec();
  EXPECT_EQ(service.stub().PlanJob(&none, request, &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  request.mutable_plan()->mutable_spec()->clear_model();
  EXPECT_EQ(service.stub().PlanJob(&bad, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(Profile, IsMadeByAnAgent) {
  Service service;
  Agent agent(service, "n1", 1);
  std::thread machine([&] {
    answer(agent, [](const v1::Probe& probe, v1::Probed& probed) {
      probed.mutable_profiled()->set_num_documents(probe.profile().max_documents());
    });
  });
  grpc::ClientContext context, bad;
  v1::ProfileDataRequest request;
  v1::ProfileDataResponse response;
  request.mutable_inspect()->set_max_documents(5);
  request.mutable_inspect()->mutable_profile();
  const grpc::Status status = service.stub().ProfileData(&context, request, &response);
  machine.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.profile().num_documents(), 5);
  request.mutable_inspect()->clear_profile();
  EXPECT_EQ(service.stub().ProfileData(&bad, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tessera::server
