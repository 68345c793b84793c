// A job's life over the wire, with the test as its agents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/service.h"

namespace tessera::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using v1::Job;

TEST(JobLife, RunsToItsEnd) {
  Service service;
  const Job job = service.submit(make_spec(2));
  EXPECT_EQ(job.state(), Job::QUEUED);
  EXPECT_THAT(service.get(job.id()).reason(), HasSubstr("needs 2 cpu devices, 0 free of 0"));
  Agent agent(service, "n1", 2);
  const v1::Prepare prepare = agent.prepare();
  EXPECT_EQ(prepare.world_size(), 2);
  EXPECT_EQ(prepare.ranks_size(), 2);
  EXPECT_TRUE(prepare.hosts_rank_zero());
  EXPECT_EQ(prepare.spec().training().save_steps(), 500) << "defaults are filled in";
  const v1::Start start = agent.next(v1::SessionResponse::kStart).start();
  EXPECT_EQ(start.rendezvous().port(), 29500);
  EXPECT_EQ(start.rendezvous().address(), "127.0.0.1");
  agent.started(prepare.run(), 0);
  EXPECT_EQ(service.get(job.id()).state(), Job::STARTING);
  agent.started(prepare.run(), 1);
  EXPECT_EQ(service.get(job.id()).state(), Job::RUNNING);
  agent.step(prepare.run(), 0, 1);
  EXPECT_EQ(service.get(job.id()).step().step(), 1);
  EXPECT_EQ(service.get(job.id()).placements_size(), 2);
  agent.finished(prepare.run(), 0);
  agent.finished(prepare.run(), 1);
  agent.ended(prepare.run());
  EXPECT_EQ(agent.next(v1::SessionResponse::kRelease).release().run().job_id(), job.id());
  const Job done = service.get(job.id());
  EXPECT_EQ(done.state(), Job::SUCCEEDED);
  EXPECT_EQ(done.attempt(), 1);
  EXPECT_THAT(done.reason(), HasSubstr("/out/final"));
  EXPECT_TRUE(done.has_start_time() && done.has_end_time());
  EXPECT_THAT(service.states(job.id()),
              ElementsAre(Job::QUEUED, Job::STARTING, Job::RUNNING, Job::SUCCEEDED));
}

TEST(JobLife, SaysWhatItWaitsFor) {
  Service service;
  const Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::Prepare prepare = agent.prepare();
  agent.started(prepare.run(), 0);
  v1::TrainerEvent event;
  event.mutable_waiting()->set_reason("the server does not answer");
  event.mutable_waiting()->set_step(3);
  agent.event(prepare.run(), 0, event);
  EXPECT_EQ(service.get(job.id()).state(), Job::RUNNING);
  EXPECT_EQ(service.get(job.id()).reason(), "the server does not answer");
  event.mutable_waiting()->clear_reason();
  agent.event(prepare.run(), 0, event);
  EXPECT_EQ(service.get(job.id()).reason(), "");
  std::vector<std::string> reasons;
  for (const v1::Event& told : service.events(job.id())) {
    if (told.has_waiting()) reasons.push_back(told.waiting().reason());
  }
  EXPECT_THAT(reasons, ElementsAre("the server does not answer", ""));
}

TEST(JobLife, TellsWhenEnginesSleep) {
  Service service;
  const Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::Prepare prepare = agent.prepare();
  agent.started(prepare.run(), 0);
  v1::TrainerEvent event;
  event.mutable_generation()->set_kv_cache_bytes(1 << 20);
  agent.event(prepare.run(), 0, event);
  const std::vector<v1::Event> events = service.events(job.id());
  EXPECT_EQ(events.back().generation().kv_cache_bytes(), 1 << 20);
}

TEST(JobLife, AGangOverTwoNodesStartsTogether) {
  Service service;
  const Job job = service.submit(make_spec(3));
  Agent first(service, "n1", 1);
  Agent second(service, "n2", 2);
  const v1::Prepare two = second.prepare();
  const v1::Prepare one = first.prepare();
  EXPECT_EQ(one.ranks_size() + two.ranks_size(), 3);
  EXPECT_NE(one.hosts_rank_zero(), two.hosts_rank_zero());
  EXPECT_EQ(first.next(v1::SessionResponse::kStart).start().rendezvous().port(), 29500);
  EXPECT_EQ(second.next(v1::SessionResponse::kStart).start().rendezvous().port(), 29500);
}

TEST(JobLife, ABatchThatComesAgainIsNotStoredTwice) {
  Service service;
  const Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::RunId run = agent.prepare().run();
  agent.started(run, 0);
  agent.step(run, 0, 1);
  const size_t before = service.events(job.id()).size();
  v1::TrainerEvent event;
  event.mutable_step()->set_step(1);
  EXPECT_EQ(agent.event_at(run, 0, 10, event).offset(), 20) << "the stored cursor";
  EXPECT_EQ(agent.event_at(run, 0, 50, event).offset(), 20) << "a gap is not taken either";
  EXPECT_EQ(service.events(job.id()).size(), before);
}

// Both ranks exit, one of them for what the other did; the node's processes are gone.
void fail_attempt(Agent& agent, const v1::RunId& run, v1::Failure::Kind kind) {
  agent.exited(run, 0, v1::Failure::NETWORK, "peer lost");
  agent.exited(run, 1, kind, "the cause");
  EXPECT_EQ(agent.next(v1::SessionResponse::kKill).kill().run().attempt(), run.attempt());
  agent.ended(run);
  agent.next(v1::SessionResponse::kRelease);
}

TEST(JobLife, AFailedRankRestartsTheGang) {
  Service service;
  const Job job = service.submit(make_spec(2));
  Agent agent(service, "n1", 2);
  const v1::RunId first = agent.prepare().run();
  agent.started(first, 0);
  agent.started(first, 1);
  fail_attempt(agent, first, v1::Failure::DEVICE);
  const v1::RunId second = agent.prepare().run();
  EXPECT_EQ(second.attempt(), 2);
  EXPECT_EQ(service.get(job.id()).restarts(), 1);
  agent.started(second, 0);
  agent.started(second, 1);
  v1::TrainerEvent checkpoint;
  checkpoint.mutable_checkpoint()->set_step(50);
  agent.event(second, 0, checkpoint);
  EXPECT_EQ(service.get(job.id()).restarts(), 0) << "a new checkpoint renews the budget";
  agent.finished(second, 0);
  agent.finished(second, 1);
  agent.ended(second);
  agent.next(v1::SessionResponse::kRelease);
  EXPECT_THAT(service.states(job.id()),
              ElementsAre(Job::QUEUED, Job::STARTING, Job::RUNNING, Job::RESTARTING, Job::QUEUED,
                          Job::STARTING, Job::RUNNING, Job::SUCCEEDED));
}

TEST(JobLife, FailsWhenItsBudgetIsSpent) {
  Service service;
  const Job job = service.submit(make_spec(2, 1));
  Agent agent(service, "n1", 2);
  fail_attempt(agent, agent.prepare().run(), v1::Failure::DEVICE);
  fail_attempt(agent, agent.prepare().run(), v1::Failure::DEVICE);
  const Job failed = service.get(job.id());
  EXPECT_EQ(failed.state(), Job::FAILED);
  EXPECT_EQ(failed.attempt(), 2);
  EXPECT_EQ(failed.failure().kind(), v1::Failure::DEVICE) << "the cause, not what it caused";
  EXPECT_THAT(failed.reason(), HasSubstr("gave up after 1 restart"));
}

TEST(JobLife, AUsersMistakeIsFinal) {
  Service service;
  const Job job = service.submit(make_spec(2));
  Agent agent(service, "n1", 2);
  fail_attempt(agent, agent.prepare().run(), v1::Failure::USER);
  const Job failed = service.get(job.id());
  EXPECT_EQ(failed.state(), Job::FAILED);
  EXPECT_EQ(failed.failure().message(), "the cause");
  EXPECT_EQ(failed.failure().rank(), 1);
}

TEST(JobLife, ARefusedPrepareIsTriedAgain) {
  Service service;
  const Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  v1::SessionRequest refusal;
  v1::Prepared& prepared = *refusal.mutable_prepared();
  *prepared.mutable_run() = agent.next(v1::SessionResponse::kPrepare).prepare().run();
  prepared.mutable_refusal()->set_kind(v1::Failure::DEVICE);
  prepared.mutable_refusal()->set_message("no room");
  agent.send(refusal);
  EXPECT_EQ(agent.prepare().run().attempt(), 2);
  EXPECT_EQ(service.get(job.id()).restarts(), 1);
}

TEST(JobLife, CancelsAQueuedJobAtOnce) {
  Service service;
  const Job job = service.submit(make_spec());
  EXPECT_EQ(service.cancel(job.id()).state(), Job::CANCELLED);
  EXPECT_EQ(service.cancel(job.id()).state(), Job::CANCELLED) << "changes nothing";
  Agent agent(service, "n1", 1);
  EXPECT_EQ(service.get(job.id()).attempt(), 0);
}

TEST(JobLife, CancelsInEveryStateWithProcesses) {
  for (const Job::State state : {Job::STARTING, Job::RUNNING, Job::RESTARTING}) {
    Service service;
    const Job job = service.submit(make_spec());
    Agent agent(service, "n1", 1);
    const v1::RunId run = agent.prepare().run();
    agent.next(v1::SessionResponse::kStart);
    if (state == Job::RUNNING) agent.started(run, 0);
    if (state == Job::RESTARTING) {
      agent.exited(run, 0, v1::Failure::BUG, "x");
      agent.next(v1::SessionResponse::kKill);
    }
    EXPECT_EQ(service.get(job.id()).state(), state);
    EXPECT_EQ(service.cancel(job.id()).state(), Job::CANCELLING);
    EXPECT_EQ(agent.next(v1::SessionResponse::kKill).kill().grace_ms(), 10'000);
    EXPECT_EQ(service.get(job.id()).state(), Job::CANCELLING) << "until the processes are gone";
    agent.ended(run);
    agent.next(v1::SessionResponse::kRelease);
    EXPECT_EQ(service.get(job.id()).state(), Job::CANCELLED);
  }
}

TEST(JobLife, AStaleAttemptIsNotHeard) {
  Service service;
  const Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::RunId stale = agent.prepare().run();
  agent.exited(stale, 0, v1::Failure::DEVICE, "x");
  agent.ended(stale);
  agent.next(v1::SessionResponse::kRelease);
  const v1::RunId current = agent.prepare().run();
  v1::SessionRequest late;
  *late.mutable_event_batch()->mutable_run() = stale;
  late.mutable_event_batch()->set_end_offset(10);
  late.mutable_event_batch()->add_events()->mutable_step()->set_step(77);
  agent.send(late);
  agent.exited(stale, 0, v1::Failure::USER, "from the past");
  agent.ended(stale);
  agent.started(current, 0);
  const Job running = service.get(job.id());
  EXPECT_EQ(running.state(), Job::RUNNING);
  EXPECT_EQ(running.attempt(), 2);
  EXPECT_FALSE(running.has_step());
}

TEST(JobLife, AJobThatTheNodesCouldNeverHoldIsRefused) {
  Service service;
  Agent agent(service, "n1", 2);
  v1::SubmitJobRequest request;
  v1::SubmitJobResponse response;
  request.set_request_id("r");
  *request.mutable_spec() = make_spec(3);
  grpc::Status status = service.submit(request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(),
            "parallelism.num_processes is 3, must be at most the number of cpu devices of all "
            "nodes, which is 2");
  *request.mutable_spec() = make_spec();
  request.mutable_spec()->mutable_resources()->set_device("cuda");
  status = service.submit(request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(),
            "resources.device is \"cuda\", and no connected node has such a device");
}

TEST(JobLife, JobsOfOneKindStartInOrder) {
  Service service;
  const Job large = service.submit(make_spec(2));
  const Job small = service.submit(make_spec(1));
  Agent agent(service, "n1", 1);
  EXPECT_EQ(agent.prepare().run().job_id(), small.id()) << "n1 can never hold the large one";
  Agent more(service, "n2", 2);
  EXPECT_EQ(more.prepare().run().job_id(), large.id());
}

}  // namespace
}  // namespace tessera::server
