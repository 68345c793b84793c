// Jobs that are stopped and go on, and projects, over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/answers.h"
#include "tests/server/service.h"

namespace tessera::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using v1::Job;

template <typename Request, typename Response>
grpc::Status ask(Service& service, const std::string& id,
                 grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*)) {
  grpc::ClientContext context;
  Request request;
  Response response;
  request.set_id(id);
  return (service.stub().*method)(&context, request, &response);
}

grpc::Status suspend(Service& service, const std::string& id) {
  return ask<v1::SuspendJobRequest, v1::SuspendJobResponse>(service, id,
                                                            &v1::Coordinator::Stub::SuspendJob);
}

grpc::Status resume(Service& service, const std::string& id) {
  return ask<v1::ResumeJobRequest, v1::ResumeJobResponse>(service, id,
                                                          &v1::Coordinator::Stub::ResumeJob);
}

grpc::Status set_project(Service& service, const v1::Project& project) {
  grpc::ClientContext context;
  v1::SetProjectRequest request;
  v1::SetProjectResponse response;
  *request.mutable_project() = project;
  return service.stub().SetProject(&context, request, &response);
}

std::vector<v1::Project> projects(Service& service) {
  grpc::ClientContext context;
  v1::ListProjectsResponse response;
  EXPECT_TRUE(service.stub().ListProjects(&context, {}, &response).ok());
  return {response.projects().begin(), response.projects().end()};
}

v1::ListQueueResponse queue(Service& service) {
  grpc::ClientContext context;
  v1::ListQueueResponse response;
  EXPECT_TRUE(service.stub().ListQueue(&context, {}, &response).ok());
  return response;
}

v1::JobSpec spec_of(const std::string& name, int priority = 0, int ranks = 1) {
  v1::JobSpec spec = make_spec(ranks);
  spec.set_name(name);
  spec.mutable_resources()->set_priority(priority);
  return spec;
}

v1::RunId begin(Agent& agent) {
  const v1::Prepare prepare = agent.prepare();
  for (const v1::Placement& placement : prepare.ranks()) {
    agent.started(prepare.run(), placement.rank());
  }
  return prepare.run();
}

// The ranks do as they are told: a checkpoint, and the end.
void stop_at(Agent& agent, const v1::RunId& run, int step) {
  v1::TrainerEvent event;
  event.mutable_checkpoint()->set_step(step);
  agent.event(run, 0, event);
  event.mutable_finished()->set_stopped(true);
  agent.event(run, 0, event);
  agent.ended(run);
  agent.next(v1::SessionResponse::kRelease);
}

TEST(Scheduling, SuspendsAtACheckpointAndResumes) {
  Service service;
  v1::JobSpec spec = spec_of("j");
  spec.mutable_resources()->mutable_grace_period()->set_seconds(42);
  const std::string id = service.submit(spec).id();
  Agent agent(service, "n1", 1);
  const v1::RunId run = begin(agent);
  EXPECT_TRUE(suspend(service, id).ok());
  EXPECT_EQ(service.get(id).state(), Job::STOPPING);
  const v1::Kill kill = agent.next(v1::SessionResponse::kKill).kill();
  EXPECT_TRUE(kill.save_checkpoint());
  EXPECT_GT(kill.grace_ms(), 40'000);
  EXPECT_LE(kill.grace_ms(), 42'000);
  stop_at(agent, run, 7);
  EXPECT_EQ(service.await(id, Job::SUSPENDED).reason(),
            "suspended; goes on from the checkpoint of step 7");
  EXPECT_TRUE(suspend(service, id).ok()) << "again";
  EXPECT_EQ(queue(service).num_queued(), 0);
  service.crash();
  service.start();
  EXPECT_EQ(service.get(id).state(), Job::SUSPENDED);
  EXPECT_TRUE(resume(service, id).ok());
  EXPECT_EQ(service.get(id).state(), Job::QUEUED);
  Agent again(service, "n1", 1);
  EXPECT_EQ(again.prepare().run().attempt(), 2);
  EXPECT_EQ(service.get(id).restarts(), 0);
}

TEST(Scheduling, WhatIsResumedWhileItStopsGoesOn) {
  Service service;
  const std::string id = service.submit(spec_of("j")).id();
  Agent agent(service, "n1", 1);
  const v1::RunId run = begin(agent);
  EXPECT_TRUE(suspend(service, id).ok());
  EXPECT_TRUE(resume(service, id).ok());
  stop_at(agent, run, 7);
  EXPECT_EQ(agent.prepare().run().attempt(), 2);
}

TEST(Scheduling, SuspendsWhatWaitsAndRefusesWhatHasEnded) {
  Service service;
  const std::string id = service.submit(spec_of("j")).id();
  EXPECT_TRUE(resume(service, id).ok()) << "it is not suspended: nothing changes";
  EXPECT_TRUE(suspend(service, id).ok());
  EXPECT_EQ(service.get(id).state(), Job::SUSPENDED);
  EXPECT_EQ(service.cancel(id).state(), Job::CANCELLED);
  EXPECT_EQ(suspend(service, id).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(resume(service, id).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(suspend(service, "none").error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(Scheduling, AJobOfHigherPriorityTakesItsPlace) {
  Service service;
  const std::string low = service.submit(spec_of("low")).id();
  Agent agent(service, "n1", 1);
  const v1::RunId run = begin(agent);
  const std::string high = accepted(service, agent, spec_of("high", 5)).id();
  EXPECT_TRUE(agent.next(v1::SessionResponse::kKill).kill().save_checkpoint());
  EXPECT_THAT(service.get(low).reason(), HasSubstr("makes room for job " + high));
  const v1::QueueEntry waiting = queue(service).entries(0);
  EXPECT_EQ(waiting.job_id(), high);
  EXPECT_THAT(waiting.reason(), HasSubstr("stops " + low));
  EXPECT_TRUE(waiting.has_start_by_time());
  stop_at(agent, run, 3);
  const v1::RunId urgent = begin(agent);
  EXPECT_EQ(urgent.job_id(), high);
  const Job stopped = service.get(low);
  EXPECT_EQ(stopped.state(), Job::QUEUED);
  EXPECT_EQ(stopped.preemptions(), 1);
  EXPECT_EQ(stopped.restarts(), 0);
  EXPECT_GT(stopped.run_time().nanos() + stopped.run_time().seconds(), 0);
  agent.finished(urgent, 0);
  agent.ended(urgent);
  EXPECT_EQ(agent.prepare().run().job_id(), low);
}

TEST(Scheduling, WhatEndsBeforeItIsStoppedHasSucceeded) {
  Service service;
  const std::string low = service.submit(spec_of("low")).id();
  Agent agent(service, "n1", 1);
  const v1::RunId run = begin(agent);
  accepted(service, agent, spec_of("high", 5));
  agent.next(v1::SessionResponse::kKill);
  agent.finished(run, 0);
  agent.ended(run);
  service.await(low, Job::SUCCEEDED);
}

TEST(Scheduling, ATimeLimitSurvivesTheCoordinator) {
  Service service({"--lease", "1s"});
  v1::JobSpec spec = spec_of("j");
  spec.mutable_resources()->mutable_time_limit()->set_seconds(2);
  const std::string id = service.submit(spec).id();
  v1::RunId run;
  {
    Agent agent(service, "n1", 1);
    run = begin(agent);
  }
  service.crash();
  service.start();
  Agent agent(service, "n1", 1, {run});
  EXPECT_TRUE(agent.next(v1::SessionResponse::kKill).kill().save_checkpoint());
  stop_at(agent, run, 3);
  const Job failed = service.await(id, Job::FAILED);
  EXPECT_EQ(failed.failure().kind(), v1::Failure::TIME);
  EXPECT_THAT(failed.reason(), HasSubstr("resources.time_limit, which is 2s"));
  EXPECT_EQ(failed.attempt(), 1);
}

TEST(Scheduling, ADeadlinePassesInTheQueueToo) {
  Service service;
  v1::JobSpec spec = spec_of("j");
  spec.mutable_resources()->mutable_deadline()->set_seconds(1);
  const std::string waiting = service.submit(spec).id();
  const std::string suspended = service.submit(spec).id();
  EXPECT_TRUE(suspend(service, suspended).ok());
  EXPECT_EQ(service.await(waiting, Job::FAILED).failure().kind(), v1::Failure::TIME);
  EXPECT_THAT(service.await(suspended, Job::FAILED).reason(), HasSubstr("resources.deadline"));
}

TEST(Scheduling, RetryBudgetsSurviveTheCoordinator) {
  Service service;
  const std::string id = service.submit(make_spec(1, 1)).id();
  {
    Agent agent(service, "n1", 1);
    const v1::RunId run = begin(agent);
    agent.exited(run, 0, v1::Failure::DEVICE, "first");
    agent.ended(run);
    agent.next(v1::SessionResponse::kRelease);
    begin(agent);
  }
  service.crash();
  service.start();
  EXPECT_EQ(service.get(id).restarts(), 1);
  Agent agent(service, "n1", 1);  // without the run: it failed again
  EXPECT_THAT(service.await(id, Job::FAILED).reason(), HasSubstr("gave up after 1 restart"));
}

TEST(Scheduling, AnElasticJobRunsOnWhatThereIs) {
  Service service;
  v1::JobSpec spec = spec_of("elastic", 0, 4);
  spec.mutable_parallelism()->set_min_num_processes(1);
  spec.mutable_training()->set_gradient_accumulation_steps(3);
  const std::string id = service.submit(spec).id();
  Agent agent(service, "n1", 3);
  const v1::Prepare prepare = agent.prepare();
  EXPECT_EQ(prepare.world_size(), 2) << "a divisor of 4";
  EXPECT_EQ(prepare.spec().parallelism().num_processes(), 2);
  EXPECT_EQ(prepare.spec().parallelism().dp_shard_size(), 2);
  EXPECT_EQ(prepare.spec().training().gradient_accumulation_steps(), 6);
  const Job job = service.get(id);
  EXPECT_EQ(job.spec().parallelism().num_processes(), 4) << "what it asks for stays";
  EXPECT_EQ(job.reason(), "starts 2 of 4 ranks on n1");
}

TEST(Scheduling, ProjectsHaveQuotasThatAreKept) {
  Service service;
  v1::Project project;
  project.set_name("a");
  project.set_max_devices(1);
  project.set_max_queued(1);
  ASSERT_TRUE(set_project(service, project).ok());
  service.crash();
  service.start();
  v1::JobSpec spec = spec_of("j");
  spec.set_project("a");
  service.submit(spec);
  Agent agent(service, "n1", 2);
  begin(agent);
  const std::string second = accepted(service, agent, spec).id();
  EXPECT_THAT(service.get(second).reason(), HasSubstr("project a holds 1 and may hold 1"));
  v1::SubmitJobRequest request;
  v1::SubmitJobResponse response;
  *request.mutable_spec() = spec;
  request.set_request_id("one-more");
  const grpc::Status status = service.submit(request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error_info(status).reason(), "PROJECT_QUEUE_FULL");
  const auto listed = projects(service);
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0].devices(), 1);
  EXPECT_EQ(listed[0].queued(), 1);
  EXPECT_EQ(listed[0].weight(), 1);
  EXPECT_GT(listed[0].mean_devices(), 0);
}

TEST(Scheduling, ProjectsAreChecked) {
  Service service;
  v1::Project project;
  project.set_name("no spaces please");
  project.set_weight(-1);
  project.set_max_devices(-1);
  const google::rpc::BadRequest bad = bad_request(set_project(service, project));
  std::vector<std::string> fields;
  for (const auto& violation : bad.field_violations()) fields.push_back(violation.field());
  EXPECT_THAT(fields, ElementsAre("project.name", "project.weight", "project.max_devices"));
}

}  // namespace
}  // namespace tessera::server
