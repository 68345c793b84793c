// Jobs that ran out of memory and ask for another plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/answers.h"
#include "tests/server/service.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using testing::Not;
using v1::Job;

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
  v1::Job job = accepted(service, agent, replanned_spec());
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

TEST(Replan, FailsWhereNoOtherPlanNeedsLess) {
  Service service;
  Agent agent(service, "n1", 1);
  v1::Job job = accepted(service, agent, replanned_spec());
  run_out(agent);
  v1::Plan plan = plan_of(0);
  plan.set_failed_peak_bytes(75 * kMiB);
  plan.set_limit_bytes(71 * kMiB);
  v1::Alternative& larger = *plan.add_alternatives();
  larger.set_title("fits, but needs more than what failed");
  larger.mutable_rehearsal()->set_peak_bytes(78 * kMiB);
  larger.set_fits(true);
  answer_plan(agent, plan);
  job = service.await(job.id(), Job::FAILED);
  EXPECT_EQ(job.failure().kind(), v1::Failure::MEMORY);
  EXPECT_THAT(job.failure().message(),
              HasSubstr("there is no other plan: the run that failed was rehearsed at 75.0 MiB"));
  EXPECT_THAT(job.failure().message(), HasSubstr("need 71.0 MiB or less; what would:\n  "
                                                 "optimizer states in 8 bits: 70.0 MiB"));
  EXPECT_THAT(job.failure().message(), Not(HasSubstr("fits, but needs more")));
}

TEST(Replan, AsksAgainAndFailsOnceItHasAskedOftenEnough) {
  Service service({"--check-timeout", "200ms"});
  Agent agent(service, "n1", 1);
  const v1::Job job = accepted(service, agent, replanned_spec());
  run_out(agent);
  for (int i = 0; i < 10; ++i) leave_unanswered(agent);
  EXPECT_EQ(service.await(job.id(), Job::FAILED).failure().message(),
            "ran out of memory, and no other plan could be made: busy");
}

TEST(Replan, WaitsForAnAgentAcrossACrash) {
  Service service;
  {
    Agent agent(service, "n1", 1);
    accepted(service, agent, replanned_spec());
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
  const v1::Job job = accepted(service, agent, replanned_spec());
  run_out(agent);
  agent.next(v1::SessionResponse::kProbe);
  EXPECT_EQ(service.cancel(job.id()).state(), Job::CANCELLED);
}

}  // namespace
}  // namespace tessera::server
