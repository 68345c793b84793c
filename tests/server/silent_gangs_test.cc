// Gangs of which nobody goes on: what ends them before their hang_timeout, and what does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/server/service.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using v1::Job;

v1::JobSpec make_spec_of_two() {
  v1::JobSpec spec = make_spec(2);
  // Silences are looked into after five seconds then.
  spec.mutable_resources()->mutable_hang_timeout()->set_seconds(120);
  return spec;
}

// The rank waits in an exchange, or is on its way there.
void tell(Agent& agent, const v1::RunId& run, int rank, bool waits) {
  v1::TrainerEvent event;
  event.mutable_collectives()->set_phase(waits ? "forward" : "data");
  v1::Collective& collective = *event.mutable_collectives()->add_collectives();
  collective.set_group("world");
  collective.set_kind("all_reduce");
  collective.set_sequence(waits ? 8 : 7);
  collective.set_is_waited_for(waits);
  collective.set_done(!waits);
  agent.event(run, rank, event);
}

void await_question(Agent& agent) {
  EXPECT_TRUE(agent.next(v1::SessionResponse::kRelay).relay().command().has_record_collectives());
}

void heartbeat(Agent& agent) {
  v1::SessionRequest request;
  request.mutable_heartbeat()->set_number(1);
  agent.send(request);
  agent.next(v1::SessionResponse::kHeartbeatAck);
}

// Two ranks on a node of their own, which run and say no more.
struct Gang {
  Gang(Service& service, const std::string& node, const std::string& job)
      : job(job), agent(service, node, 2), run(agent.prepare().run()) {
    agent.next(v1::SessionResponse::kStart);
    agent.started(run, 0);
    agent.started(run, 1);
    service.await(job, Job::RUNNING);
  }

  // The ranks are asked, and these answer: rank 0 waits, for rank 1.
  void asked(const std::vector<int>& answering) {
    await_question(agent);
    for (const int rank : answering) tell(agent, run, rank, rank == 0);
  }

  const std::string job;
  Agent agent;
  const v1::RunId run;
};

TEST(SilentGangs, EndEarlyWhereARankDoesNotEvenAnswer) {
  Service service;
  // Before there are agents, which would be asked about them; each node takes the next.
  std::vector<std::string> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(service.submit(make_spec_of_two()).id());
  Gang at_work(service, "n1", jobs[0]);
  Gang nobody_answers(service, "n2", jobs[1]);
  // On two nodes: what is asked, or answered, may have been lost on the way to one.
  Agent near(service, "n3", 1), far(service, "n4", 1);
  const v1::RunId spread = near.prepare().run();
  far.prepare();
  const int near_rank = service.get(jobs[2]).placements(0).node() == "n3" ? 0 : 1;
  near.next(v1::SessionResponse::kStart);
  far.next(v1::SessionResponse::kStart);
  near.started(spread, near_rank);
  far.started(spread, 1 - near_rank);
  service.await(jobs[2], Job::RUNNING);
  Gang stopped(service, "n5", jobs[3]);
  at_work.asked({0, 1});
  nobody_answers.asked({});
  await_question(near);
  tell(near, spread, near_rank, true);
  stopped.asked({0});
  while (service.get(stopped.job).state() == Job::RUNNING) {
    for (Agent* agent : {&at_work.agent, &nobody_answers.agent, &near, &far, &stopped.agent}) {
      heartbeat(*agent);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  const Job failed = service.get(stopped.job);
  EXPECT_EQ(failed.state(), Job::RESTARTING);
  EXPECT_THAT(failed.reason(),
              StartsWith("rank 1 does not answer, and rank 0 waits for it in all_reduce 8"));
  EXPECT_THAT(failed.reason(), HasSubstr("no progress for 10 s"));
  const v1::Kill kill = stopped.agent.next(v1::SessionResponse::kKill).kill();
  EXPECT_EQ(kill.grace_ms(), 0) << "who hangs will not stop";
  // These were asked before, and have the whole of their hang_timeout.
  for (const std::string& job : {jobs[0], jobs[1], jobs[2]}) {
    EXPECT_EQ(service.get(job).state(), Job::RUNNING) << job;
  }
}

}  // namespace
}  // namespace tessera::server
