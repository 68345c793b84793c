// What the coordinator finds out about ranks that hang, are slow, or are to be traced; the test is
// their agents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "server/agents/stragglers.h"
#include "tests/server/service.h"

namespace tessera::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using v1::Job;

// A job of three ranks on two nodes, which run.
class HangTest : public testing::Test {
 protected:
  HangTest() {
    run_ = first_.prepare().run();
    second_.prepare();
    first_.next(v1::SessionResponse::kStart);
    second_.next(v1::SessionResponse::kStart);
    const Job placed = service_.get(job_);
    for (const v1::Placement& placement : placed.placements()) {
      ranks_[placement.node()].push_back(placement.rank());
    }
    for (const int rank : ranks_.at("n1")) first_.started(run_, rank);
    for (const int rank : ranks_.at("n2")) second_.started(run_, rank);
    service_.await(job_, Job::RUNNING);
  }

  Agent& agent_of(int rank) {
    const auto& here = ranks_.at("n1");
    return std::find(here.begin(), here.end(), rank) != here.end() ? first_ : second_;
  }

  void hangs(int rank, int64_t idle_ms = 60'000) {
    v1::SessionRequest message;
    *message.mutable_rank_hung()->mutable_run() = run_;
    message.mutable_rank_hung()->set_rank(rank);
    message.mutable_rank_hung()->set_idle_ms(idle_ms);
    agent_of(rank).send(message);
  }

  // The rank waits in all_gather 118, or was last in 117.
  void tells(int rank, bool waits) {
    v1::TrainerEvent event;
    v1::CollectiveRecord& record = *event.mutable_collectives();
    record.set_phase(waits ? "forward" : "data");
    record.set_step(4);
    v1::Collective& collective = *record.add_collectives();
    collective.set_group("dp_shard");
    collective.set_kind("all_gather");
    collective.set_sequence(waits ? 118 : 117);
    collective.set_seconds(31);
    collective.set_is_waited_for(waits);
    collective.set_done(!waits);
    agent_of(rank).event(run_, rank, event);
  }

  // That both agents are asked to hand on.
  std::vector<v1::Relay> relays() {
    return {first_.next(v1::SessionResponse::kRelay).relay(),
            second_.next(v1::SessionResponse::kRelay).relay()};
  }

  void end_all() {
    first_.ended(run_);
    second_.ended(run_);
  }

  Service service_;
  // Before there are agents, which would be asked about it.
  const std::string job_ = service_.submit(make_spec(3)).id();
  Agent first_{service_, "n1", 2};
  Agent second_{service_, "n2", 1};
  v1::RunId run_;
  std::map<std::string, std::vector<int>> ranks_;
};

TEST_F(HangTest, NamesTheRankThatDidNotCome) {
  hangs(0);
  for (const v1::Relay& relay : relays()) {
    EXPECT_TRUE(relay.command().has_record_collectives());
    EXPECT_EQ(relay.run().attempt(), 1);
  }
  tells(0, true);
  tells(1, true);
  tells(2, false);
  const std::string node = service_.get(job_).placements(2).node();
  const Job failed = service_.await(job_, Job::RESTARTING);
  EXPECT_THAT(failed.reason(),
              AllOf(StartsWith("rank 2 has not reached all_gather 118 of dp_shard, which ranks 0 "
                               "and 1 wait in since 31 s; it is in phase data of step 4"),
                    HasSubstr("rank 2 runs on " + node), HasSubstr("no progress for 60 s")));
  EXPECT_EQ(first_.next(v1::SessionResponse::kKill).kill().run().attempt(), 1);
  // What the kill does explains nothing.
  v1::SessionRequest killed;
  *killed.mutable_rank_exited()->mutable_run() = run_;
  killed.mutable_rank_exited()->set_rank(1);
  killed.mutable_rank_exited()->set_was_killed(true);
  killed.mutable_rank_exited()->mutable_failure()->set_kind(v1::Failure::DEVICE);
  killed.mutable_rank_exited()->mutable_failure()->set_message("rank 1 was killed");
  agent_of(1).send(killed);
  end_all();
  service_.await(job_, Job::STARTING);
  bool is_queued = false;
  for (const v1::Event& event : service_.events(job_)) {
    if (event.state().state() != Job::QUEUED || event.attempt() == 0) continue;
    is_queued = true;
    EXPECT_EQ(event.state().failure().kind(), v1::Failure::HANG);
    EXPECT_EQ(event.state().failure().rank(), 2);
    EXPECT_THAT(event.state().reason(), HasSubstr("rank 2 has not reached all_gather 118"));
  }
  EXPECT_TRUE(is_queued);
}

// A rank that is stopped cannot answer, and nobody waits for that for long.
TEST_F(HangTest, ARankThatDoesNotAnswerIsTheFinding) {
  hangs(1, /*idle_ms=*/1000);
  relays();
  tells(0, true);
  tells(2, true);
  EXPECT_THAT(
      service_.await(job_, Job::RESTARTING).reason(),
      StartsWith("rank 1 does not answer, and ranks 0 and 2 wait for it in all_gather 118"));
}

TEST_F(HangTest, WhatARankToldBeforeItWentOnIsForgotten) {
  tells(2, true);
  agent_of(2).step(run_, 2, 5);
  hangs(0, /*idle_ms=*/1000);
  tells(0, true);
  tells(1, true);
  EXPECT_THAT(service_.await(job_, Job::RESTARTING).reason(), StartsWith("rank 2 does not answer"));
}

// They give each other up before anybody has asked.
TEST_F(HangTest, RanksThatTimeOutTellBeforeTheyEnd) {
  tells(0, true);
  tells(1, true);
  agent_of(0).exited(run_, 0, v1::Failure::NETWORK, "the other ranks did not answer");
  agent_of(1).exited(run_, 1, v1::Failure::NETWORK, "the other ranks did not answer");
  end_all();
  service_.await(job_, Job::STARTING);
  std::string reason;
  for (const v1::Event& event : service_.events(job_)) {
    if (event.state().state() == Job::QUEUED) reason = event.state().reason();
  }
  EXPECT_THAT(reason, HasSubstr("the other ranks did not answer; rank 2 does not answer, and ranks "
                                "0 and 1 wait for it in all_gather 118 of dp_shard"));
}

// Its death says why; the log says where the others were.
TEST_F(HangTest, ADeadRankIsNamedAsWhatTheOthersWaitFor) {
  agent_of(2).exited(run_, 2, v1::Failure::DEVICE, "rank 2 was killed by signal 9");
  tells(0, true);
  tells(1, true);
  agent_of(0).exited(run_, 0, v1::Failure::NETWORK, "peer lost");
  agent_of(1).exited(run_, 1, v1::Failure::NETWORK, "peer lost");
  end_all();
  service_.await(job_, Job::STARTING);
  std::vector<std::string> lines;
  for (const v1::Event& event : service_.events(job_)) {
    if (event.has_log()) lines.push_back(event.log().text());
  }
  EXPECT_THAT(lines, testing::Contains(StartsWith("rank 2 has ended, and ranks 0 and 1 wait")));
}

TEST_F(HangTest, RecordsAreAskedForAndToldAsEvents) {
  grpc::ClientContext context;
  v1::RecordCollectivesRequest request;
  request.set_id(job_);
  v1::RecordCollectivesResponse response;
  ASSERT_TRUE(service_.stub().RecordCollectives(&context, request, &response).ok());
  relays();
  tells(2, true);
  const v1::Event last = service_.events(job_).back();
  EXPECT_EQ(last.collectives().rank(), 2);
  EXPECT_EQ(last.collectives().collectives(0).sequence(), 118);
  EXPECT_EQ(service_.get(job_).state(), Job::RUNNING) << "to ask is not to doubt";
}

TEST_F(HangTest, TracesAreAskedOfTheRanksThatAreNamed) {
  const auto trace = [&](int num_steps, int first_step, const std::vector<int>& ranks) {
    grpc::ClientContext context;
    v1::TraceJobRequest request;
    request.set_id(job_);
    request.set_num_steps(num_steps);
    request.set_first_step(first_step);
    *request.mutable_ranks() = {ranks.begin(), ranks.end()};
    v1::TraceJobResponse response;
    return service_.stub().TraceJob(&context, request, &response);
  };
  const int alone = ranks_.at("n2").front();
  ASSERT_TRUE(trace(0, 9, {alone}).ok());
  const v1::Relay relay = second_.next(v1::SessionResponse::kRelay).relay();
  EXPECT_THAT(relay.ranks(), ElementsAre(alone));
  EXPECT_EQ(relay.command().trace_steps().num_steps(), 1);
  EXPECT_EQ(relay.command().trace_steps().first_step(), 9);
  EXPECT_THAT(trace(1, 0, {3}).error_message(), HasSubstr("ranks has 3, must be from 0 to 2"));
  EXPECT_THAT(trace(65, 0, {}).error_message(), HasSubstr("num_steps must be from 1 to 64, is 65"));
  EXPECT_THAT(trace(1, -1, {}).error_message(), HasSubstr("first_step must be at least 1, is -1"));
  v1::TrainerEvent saved;
  saved.mutable_trace()->set_step(9);
  saved.mutable_trace()->set_path("/out/traces/step-9-rank-2.json");
  second_.event(run_, alone, saved);
  EXPECT_EQ(service_.events(job_).back().trace().rank(), alone);
  service_.cancel(job_);
  EXPECT_EQ(error_info(trace(1, 0, {})).reason(), "JOB_NOT_RUNNING");
}

TEST_F(HangTest, ARankThatIsSlowIsNamedUntilItKeepsUp) {
  const auto steps = [&](double busy, int first) {
    for (int step = first; step < first + kSlowEvents; ++step) {
      v1::TrainerEvent event;
      event.mutable_step()->set_step(step);
      for (const double seconds : {1., 1., busy}) {
        event.mutable_step()->add_rank_times()->set_busy_seconds(seconds);
      }
      agent_of(0).event(run_, 0, event);
    }
    return service_.get(job_);
  };
  const Job slow = steps(2, 1);
  const v1::Straggler found = service_.events(job_).back().straggler();
  EXPECT_EQ(found.rank(), 2);
  EXPECT_EQ(found.node(), slow.placements(2).node());
  EXPECT_FALSE(found.is_over());
  EXPECT_THAT(slow.reason(), AllOf(StartsWith("rank 2 on "), HasSubstr("is slow: busy for 2 s")));
  const Job again = steps(1, 100);
  EXPECT_THAT(again.reason(), HasSubstr("keeps up again"));
  EXPECT_TRUE(service_.events(job_).back().straggler().is_over());
}

}  // namespace
}  // namespace tessera::server
