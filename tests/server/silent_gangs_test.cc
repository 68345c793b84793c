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

// Two ranks on a node of their own, which run and say no more.
struct Gang {
  Gang(Service& service, const std::string& node, const std::string& job)
      : job(job), agent(service, node, 2), run(agent.prepare().run()) {
    agent.next(v1::SessionResponse::kStart);
    agent.started(run, 0);
    agent.started(run, 1);
    service.await(job, Job::RUNNING);
  }

  // The ranks are asked, and these answer: rank 0 waits in an exchange, rank 1 is on its way.
  void asked(const std::vector<int>& answering) {
    EXPECT_TRUE(agent.next(v1::SessionResponse::kRelay).relay().command().has_record_collectives());
    for (const int rank : answering) {
      v1::TrainerEvent event;
      event.mutable_collectives()->set_phase(rank == 0 ? "forward" : "data");
      v1::Collective& collective = *event.mutable_collectives()->add_collectives();
      collective.set_group("world");
      collective.set_kind("all_reduce");
      collective.set_sequence(rank == 0 ? 8 : 7);
      collective.set_is_waited_for(rank == 0);
      collective.set_done(rank != 0);
      agent.event(run, rank, event);
    }
  }

  void heartbeat() {
    v1::SessionRequest request;
    request.mutable_heartbeat()->set_number(1);
    agent.send(request);
    agent.next(v1::SessionResponse::kHeartbeatAck);
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
  Gang unheard_of(service, "n3", jobs[2]);
  Gang stopped(service, "n4", jobs[3]);
  at_work.asked({0, 1});
  nobody_answers.asked({});
  // Its node is not heard of any more, so that nobody knows what its ranks would say.
  unheard_of.asked({0});
  stopped.asked({0});
  while (service.get(stopped.job).state() == Job::RUNNING) {
    for (Gang* gang : {&at_work, &nobody_answers, &stopped}) gang->heartbeat();
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
  for (const Gang* gang : {&at_work, &nobody_answers, &unheard_of}) {
    EXPECT_EQ(service.get(gang->job).state(), Job::RUNNING) << gang->job;
  }
}

}  // namespace
}  // namespace tessera::server
