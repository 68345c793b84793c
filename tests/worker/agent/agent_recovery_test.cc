// Agents and coordinators that go away and come back, while ranks go on.
#include <signal.h>

#include <utility>

#include "tests/worker/agent/agent_fixture.h"
#include "worker/agent/rank.h"
#include "worker/agent/stream_tail.h"

namespace tessera::agent {
namespace {

using testing::HasSubstr;

bool is_hello(const v1::SessionRequest& message) { return message.has_hello(); }

class AgentRecoveryTest : public AgentTest {
 protected:
  v1::Hello last_hello() {
    v1::Hello hello;
    for (const auto& message : coordinator_->received()) {
      if (message.has_hello()) hello = message.hello();
    }
    return hello;
  }
};

TEST_F(AgentRecoveryTest, ANewAgentTakesUpLiveRanks) {
  start_agent();
  const v1::RunId run = start_run("gated-4000", 2);
  ASSERT_TRUE(coordinator_->await([&] { return !steps(run, 0).empty(); }));
  kill_agent();
  start_agent();
  ASSERT_TRUE(coordinator_->await_message(is_hello, 2));
  ASSERT_EQ(last_hello().runs_size(), 1);
  EXPECT_EQ(last_hello().runs(0).job_id(), "gated-4000");
  open_gate();
  ASSERT_TRUE(await_run_ended(run));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(steps(run, rank), count_to(4000));
    EXPECT_FALSE(await_exit(run, rank).has_failure());
  }
  send_release(run);
  EXPECT_TRUE(await_gone(run_directory(run)));
}

TEST_F(AgentRecoveryTest, NothingIsLostOverManyAgents) {
  start_agent();
  const v1::RunId run = start_run("gated-20000");
  for (int agent = 0; agent < 5; ++agent) {
    const size_t before = steps(run).size();
    // Somewhere in the middle of sending.
    ASSERT_TRUE(coordinator_->await([&] { return steps(run).size() > before || before >= 10000; }));
    kill_agent();
    start_agent();
  }
  open_gate();
  ASSERT_TRUE(await_run_ended(run));
  EXPECT_EQ(steps(run), count_to(20000));
}

TEST_F(AgentRecoveryTest, FinishedWhileTheAgentWasAway) {
  start_agent();
  const v1::RunId run = start_run("gated-1000");
  const pid_t pid = await_pid(run);
  kill_agent();
  open_gate();
  ASSERT_TRUE(await_dead(pid));
  start_agent();
  ASSERT_TRUE(await_run_ended(run));
  EXPECT_EQ(steps(run), count_to(1000));
  EXPECT_FALSE(await_exit(run).has_failure());
}

TEST_F(AgentRecoveryTest, DiedWhileTheAgentWasAway) {
  start_agent();
  const v1::RunId run = start_run("die-gated");
  const pid_t pid = await_pid(run);
  kill_agent();
  open_gate();
  ASSERT_TRUE(await_dead(pid));
  start_agent();
  EXPECT_EQ(await_exit(run).failure().kind(), v1::Failure::DEVICE);
  EXPECT_THAT(await_exit(run).failure().message(), HasSubstr("ended without a word"));
}

TEST_F(AgentRecoveryTest, RemembersHowARankEndedAndThatItFinished) {
  start_agent();
  const v1::RunId silent = start_run("silent");
  const v1::RunId done = start_run("steps-10");
  ASSERT_TRUE(await_run_ended(silent));
  ASSERT_TRUE(await_run_ended(done));
  kill_agent();
  start_agent();
  ASSERT_TRUE(await_run_ended(silent, 2));
  ASSERT_TRUE(await_run_ended(done, 2));
  for (const auto& message : coordinator_->received()) {
    if (!message.has_rank_exited()) continue;
    const bool failed = message.rank_exited().run().job_id() == "silent";
    EXPECT_EQ(message.rank_exited().has_failure(), failed);
    if (failed) {
      EXPECT_THAT(message.rank_exited().failure().message(), HasSubstr("exited with status 3"));
    }
  }
}

TEST_F(AgentRecoveryTest, KillsAnAdoptedRank) {
  start_agent();
  const v1::RunId run = start_run("stubborn");
  const pid_t pid = await_pid(run);
  kill_agent();
  start_agent();
  ASSERT_TRUE(coordinator_->await_message(is_hello, 2));
  send_kill(run, 50);
  EXPECT_TRUE(await_run_ended(run));
  EXPECT_THAT(await_exit(run).failure().message(), HasSubstr("the user cancelled the job"));
  EXPECT_TRUE(await_dead(pid));
}

TEST_F(AgentRecoveryTest, DropsARunThatWasNotStarted) {
  start_agent();
  ASSERT_TRUE(coordinator_->await_message(is_hello));
  v1::SessionResponse message;
  *message.mutable_prepare() = prepare_message("hang", 1);
  coordinator_->send(message);
  await_prepared(run_id("hang"));
  ASSERT_TRUE(std::filesystem::exists(run_directory(run_id("hang"))));
  kill_agent();
  start_agent();
  ASSERT_TRUE(coordinator_->await_message(is_hello, 2));
  EXPECT_EQ(last_hello().runs_size(), 0);
  EXPECT_FALSE(std::filesystem::exists(run_directory(run_id("hang"))));
}

TEST_F(AgentRecoveryTest, GoesOnWhenTheCoordinatorComesBack) {
  start_agent();
  const v1::RunId run = start_run("gated-4000");
  ASSERT_TRUE(coordinator_->await([&] { return steps(run).size() == 2000; }));
  coordinator_->stop();
  open_gate();
  coordinator_->start();
  ASSERT_TRUE(await_run_ended(run));
  EXPECT_EQ(steps(run), count_to(4000));
  EXPECT_FALSE(await_exit(run).has_failure());
}

TEST_F(AgentRecoveryTest, SendsTheEndAgainWhileTheRunIsWanted) {
  start_agent();
  const v1::RunId run = start_run("steps-5");
  ASSERT_TRUE(await_run_ended(run));
  coordinator_->stop();
  coordinator_->start();
  EXPECT_TRUE(await_run_ended(run, 2));
  EXPECT_EQ(steps(run), count_to(5));
}

TEST_F(AgentRecoveryTest, LimitsWhatIsNotAcknowledged) {
  coordinator_->hold_acks();
  start_agent();
  const v1::RunId run = start_run("steps-5000");
  const size_t limit = kMaxUnackedBatches * kMaxBatchEvents;
  ASSERT_TRUE(coordinator_->await(
      [&] { return coordinator_->events(run, 0, v1::RANK_STREAM_EVENTS).size() >= limit - 256; }));
  // Whatever is sent for another run comes after it.
  start_run("hang");
  EXPECT_LE(coordinator_->events(run, 0, v1::RANK_STREAM_EVENTS).size(), limit);
}

TEST_F(AgentRecoveryTest, KillsAndDeletesRunsThatAreNotWanted) {
  start_agent();
  const v1::RunId unwanted = start_run("stubborn");
  const v1::RunId wanted = start_run("hang");
  const pid_t unwanted_pid = await_pid(unwanted);
  const pid_t wanted_pid = await_pid(wanted);
  coordinator_->stop();
  coordinator_->forget(unwanted);
  coordinator_->start();
  EXPECT_TRUE(await_dead(unwanted_pid));
  EXPECT_TRUE(await_gone(run_directory(unwanted)));
  EXPECT_EQ(::kill(wanted_pid, 0), 0);
}

TEST_F(AgentRecoveryTest, ANewAttemptKillsTheOldOne) {
  start_agent();
  const v1::RunId first = start_run("stubborn");
  const pid_t pid = await_pid(first);
  v1::SessionResponse message;
  *message.mutable_prepare() = prepare_message("stubborn", 1);
  message.mutable_prepare()->mutable_run()->set_attempt(2);
  coordinator_->send(message);
  EXPECT_TRUE(await_dead(pid));
  EXPECT_THAT(await_exit(first).failure().message(), HasSubstr("a newer attempt"));
}

TEST_F(AgentRecoveryTest, RefusesASecondAgentOnTheSameDirectory) {
  start_agent();
  ASSERT_TRUE(coordinator_->await_message(is_hello));
  const auto first = std::exchange(agent_, nullptr);
  start_agent();
  EXPECT_EQ(await_agent_exit(), 1);
  EXPECT_THAT(agent_log(), HasSubstr("another tessera-agent uses"));
  first->kill_group(SIGKILL);
  EXPECT_TRUE(await_dead(first->pid()));
}

TEST_F(AgentRecoveryTest, EndsWhenAnotherAgentTakesItsName) {
  start_agent();
  ASSERT_TRUE(coordinator_->await_message(is_hello));
  coordinator_->abort_session();
  EXPECT_EQ(await_agent_exit(), 1);
  EXPECT_THAT(agent_log(), HasSubstr("another agent has taken the node name \"test-node\""));
}

TEST_F(AgentRecoveryTest, SigtermLeavesRanksRunning) {
  start_agent();
  const v1::RunId run = start_run("hang");
  const pid_t pid = await_pid(run);
  signal_agent(SIGTERM);
  EXPECT_EQ(await_agent_exit(), 0);
  EXPECT_EQ(::kill(pid, 0), 0);
}

TEST_F(AgentRecoveryTest, KillOnExitLeavesNone) {
  start_agent({"--kill-on-exit"});
  const v1::RunId run = start_run("stubborn", 2);
  const pid_t pids[] = {await_pid(run, 0), await_pid(run, 1)};
  signal_agent(SIGTERM);
  EXPECT_EQ(await_agent_exit(), 0);
  for (const pid_t pid : pids) EXPECT_TRUE(await_dead(pid));
}

}  // namespace
}  // namespace tessera::agent
