// What is left after a crash of the coordinator, a lost machine, or a session that breaks.
#include <atomic>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/service.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using v1::Job;

TEST(Recovery, AcknowledgedJobsSurviveSigkill) {
  Service service;
  std::atomic<int> num_acknowledged = 0;
  std::vector<std::vector<std::string>> acknowledged(4);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < acknowledged.size(); ++i) {
    clients.emplace_back([&, i] {
      for (int n = 0;; ++n) {
        v1::SubmitJobRequest request;
        v1::SubmitJobResponse response;
        *request.mutable_spec() = make_spec();
        request.set_request_id(std::to_string(i) + "-" + std::to_string(n));
        if (!service.submit(request, &response).ok()) return;
        acknowledged[i].push_back(response.job().id());
        ++num_acknowledged;
        num_acknowledged.notify_one();
      }
    });
  }
  for (int seen = 0; seen < 40; seen = num_acknowledged) num_acknowledged.wait(seen);
  service.crash();
  for (std::thread& client : clients) client.join();
  service.start();
  std::set<std::string> all;
  for (const auto& ids : acknowledged) {
    for (const std::string& id : ids) {
      EXPECT_EQ(service.get(id).state(), Job::QUEUED);
      EXPECT_TRUE(all.insert(id).second) << "one id for two requests";
    }
  }
  v1::SubmitJobRequest again;
  v1::SubmitJobResponse response;
  *again.mutable_spec() = make_spec();
  again.set_request_id("0-0");
  ASSERT_TRUE(service.submit(again, &response).ok());
  EXPECT_EQ(response.job().id(), acknowledged[0][0]);
}

// An attempt that was cut off took steps and saved them: who goes on from there tells of them, and
// of others that are known.
TEST(Recovery, WhatACheckpointTellsOfIsNewsOnce) {
  Service service;
  const Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::RunId first = agent.prepare().run();
  const auto evaluate = [&](const v1::RunId& run, int step) {
    v1::TrainerEvent event;
    event.mutable_eval()->set_step(step);
    agent.event(run, 0, event);
  };
  agent.started(first, 0);
  agent.step(first, 0, 1);
  agent.step(first, 0, 2);
  evaluate(first, 2);
  agent.exited(first, 0, v1::Failure::NETWORK, "cut off");
  agent.ended(first);
  agent.next(v1::SessionResponse::kRelease);
  agent.offsets.clear();
  const v1::RunId second = agent.prepare().run();
  agent.started(second, 0, /*resumed_step=*/4);
  for (int step = 1; step <= 4; ++step) {
    agent.step(second, 0, step);
    if (step % 2 == 0) evaluate(second, step);
  }
  agent.step(second, 0, 5);
  std::vector<int> steps, evaluations;
  for (const v1::Event& event : service.events(job.id())) {
    if (event.has_step()) steps.push_back(event.step().step());
    if (event.has_eval()) evaluations.push_back(event.eval().step());
  }
  EXPECT_THAT(steps, testing::ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(evaluations, testing::ElementsAre(2, 4));
}

TEST(Recovery, ARunningJobGoesOnOverACrash) {
  Service service;
  const Job job = service.submit(make_spec());
  v1::RunId run;
  {
    Agent agent(service, "n1", 1);
    run = agent.prepare().run();
    agent.started(run, 0);
    agent.step(run, 0, 1);
    service.crash();
  }
  service.start();
  EXPECT_EQ(service.get(job.id()).state(), Job::RUNNING);
  Agent agent(service, "n1", 1, {run});
  EXPECT_EQ(agent.welcome().epoch(), 2);
  EXPECT_EQ(agent.welcome().cursors_size(), 2) << "events and output of one rank";
  EXPECT_EQ(agent.offsets[0], 20);
  agent.step(run, 0, 2);
  agent.finished(run, 0);
  agent.ended(run);
  agent.next(v1::SessionResponse::kRelease);
  EXPECT_EQ(service.get(job.id()).state(), Job::SUCCEEDED);
  std::vector<int> steps;
  for (const v1::Event& event : service.events(job.id())) {
    if (event.has_step()) steps.push_back(event.step().step());
  }
  EXPECT_THAT(steps, testing::ElementsAre(1, 2));
}

TEST(Recovery, AHalfDonePrepareIsRepeated) {
  Service service;
  const Job job = service.submit(make_spec());
  v1::RunId run;
  {
    Agent agent(service, "n1", 1);
    run = agent.next(v1::SessionResponse::kPrepare).prepare().run();
    service.crash();
  }
  service.start();
  Agent agent(service, "n1", 1);
  EXPECT_EQ(agent.prepare().run().attempt(), run.attempt());
  agent.next(v1::SessionResponse::kStart);
  agent.started(run, 0);
  EXPECT_EQ(service.get(job.id()).state(), Job::RUNNING);
}

TEST(Recovery, CancellingGoesOnOverACrash) {
  Service service;
  const Job job = service.submit(make_spec());
  v1::RunId run;
  {
    Agent agent(service, "n1", 1);
    run = agent.prepare().run();
    agent.started(run, 0);
    service.cancel(job.id());
    service.crash();
  }
  service.start();
  EXPECT_EQ(service.get(job.id()).state(), Job::CANCELLING);
  Agent agent(service, "n1", 1, {run});
  EXPECT_EQ(agent.next(v1::SessionResponse::kKill).kill().run().job_id(), job.id());
  agent.ended(run);
  agent.next(v1::SessionResponse::kRelease);
  EXPECT_EQ(service.get(job.id()).state(), Job::CANCELLED);
}

TEST(Recovery, ANodeBackWithoutItsRunCostsAnAttempt) {
  Service service;
  const Job job = service.submit(make_spec());
  {
    Agent agent(service, "n1", 1);
    const v1::RunId run = agent.prepare().run();
    agent.started(run, 0);
  }
  Agent agent(service, "n1", 1);
  EXPECT_EQ(agent.prepare().run().attempt(), 2);
  EXPECT_EQ(service.get(job.id()).restarts(), 1);
}

TEST(Recovery, RunsThatAreNotWantedHaveNoCursors) {
  Service service;
  v1::RunId gone;
  gone.set_job_id("demo-aaaaaa");
  gone.set_attempt(1);
  Agent agent(service, "n1", 1, {gone});
  EXPECT_EQ(agent.welcome().epoch(), 1);
  EXPECT_EQ(agent.welcome().cursors_size(), 0);
}

TEST(Recovery, ANewerSessionEndsTheOlder) {
  Service service;
  Agent older(service, "n1", 1);
  Agent newer(service, "n1", 1);
  EXPECT_EQ(newer.welcome().epoch(), older.welcome().epoch() + 1);
  EXPECT_EQ(older.finish().error_code(), grpc::StatusCode::ABORTED);
}

TEST(Recovery, ALostNodesJobStartsElsewhereAfterTheFence) {
  Service service({"--lease", "200ms", "--fence", "500ms"});
  const Job job = service.submit(make_spec());
  Agent silent(service, "n1", 1);
  const v1::RunId run = silent.prepare().run();
  silent.started(run, 0);
  const Job waiting = service.await(job.id(), Job::QUEUED);
  EXPECT_EQ(waiting.restarts(), 1);
  bool said_why = false;
  for (const v1::Event& event : service.events(job.id())) {
    said_why |= event.state().failure().message().find("not heard from") != std::string::npos;
  }
  EXPECT_TRUE(said_why);
  EXPECT_EQ(silent.finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::ListNodesResponse nodes;
  grpc::ClientContext context;
  ASSERT_TRUE(service.stub().ListNodes(&context, {}, &nodes).ok());
  EXPECT_EQ(nodes.nodes(0).state(), v1::Node::LOST);
  Agent other(service, "n2", 1);
  EXPECT_EQ(other.prepare().run().attempt(), 2);
  Agent back(service, "n1", 1, {run});
  EXPECT_EQ(back.welcome().cursors_size(), 0) << "its old run is to be killed";
}

TEST(Recovery, StopsCleanlyAndLeavesRunsAlone) {
  Service service;
  const Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::RunId run = agent.prepare().run();
  agent.next(v1::SessionResponse::kStart);
  agent.started(run, 0);
  v1::WatchJobRequest request;
  request.set_id(job.id());
  grpc::ClientContext context;
  auto stream = service.stub().WatchJob(&context, request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(service.stop(), 0);
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(agent.finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  service.start();
  EXPECT_EQ(service.get(job.id()).state(), Job::RUNNING);
}

}  // namespace
}  // namespace tessera::server
