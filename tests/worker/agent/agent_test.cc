// What an agent does for a run while it and its coordinator live.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "tests/worker/agent/agent_fixture.h"
#include "worker/agent/stream_tail.h"

namespace tessera::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(AgentTest, SaysHelloWithItsDevices) {
  start_agent();
  ASSERT_TRUE(coordinator_->await_message([](const auto& m) { return m.has_hello(); }));
  const v1::Hello hello = coordinator_->received()[0].hello();
  EXPECT_EQ(hello.node(), "test-node");
  EXPECT_EQ(hello.address(), "127.0.0.1");
  EXPECT_FALSE(hello.version().empty());
  ASSERT_EQ(hello.devices_size(), 8);
  EXPECT_EQ(hello.devices(7).index(), 7);
  EXPECT_EQ(hello.devices(7).kind(), "cpu");
  EXPECT_GT(hello.devices(7).memory_bytes(), 0);
  EXPECT_EQ(hello.runs_size(), 0);
}

TEST_F(AgentTest, RunsAGangToItsEndAndDeletesIt) {
  start_agent();
  const v1::RunId run = start_run("steps-3000", 2);
  ASSERT_TRUE(await_run_ended(run));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(steps(run, rank), count_to(3000));
    EXPECT_FALSE(await_exit(run, rank).has_failure());
    EXPECT_TRUE(coordinator_->events(run, rank, v1::RANK_STREAM_EVENTS).back().has_finished());
  }
  EXPECT_TRUE(coordinator_->received().back().has_run_ended());
  send_release(run);
  EXPECT_TRUE(await_gone(run_directory(run).parent_path()));
}

TEST_F(AgentTest, RankZeroInheritsTheListeningSocket) {
  start_agent();
  const v1::RunId run = start_run("rendezvous", 3);
  EXPECT_GT(await_prepared(run).rendezvous().port(), 0);
  ASSERT_TRUE(await_run_ended(run));
  for (int rank = 0; rank < 3; ++rank) EXPECT_FALSE(await_exit(run, rank).has_failure());
  std::vector<std::string> said;
  for (const auto& event : coordinator_->events(run, 0, v1::RANK_STREAM_EVENTS)) {
    if (event.has_log()) said.push_back(event.log().text());
  }
  EXPECT_THAT(said, testing::UnorderedElementsAre("accepted 1", "accepted 2"));
}

TEST_F(AgentTest, ReportsARankKilledByASignal) {
  start_agent();
  const v1::RunId run = start_run("hang", 2);
  ASSERT_GT(await_pid(run, 1), 0);
  ASSERT_EQ(::kill(await_pid(run, 1), SIGKILL), 0);
  const v1::Failure failure = await_exit(run, 1).failure();
  EXPECT_EQ(failure.kind(), v1::Failure::DEVICE);
  EXPECT_EQ(failure.rank(), 1);
  EXPECT_EQ(failure.message(), "rank 1 was killed by signal 9 (SIGKILL)");
  // The other rank is the coordinator's to kill.
  send_kill(run, 0);
  EXPECT_THAT(await_exit(run, 0).failure().message(), HasSubstr("the user cancelled the job"));
  EXPECT_TRUE(await_run_ended(run));
}

TEST_F(AgentTest, TellsSilentEndsFromReportedFailures) {
  start_agent();
  const v1::RunId silent = start_run("silent");
  EXPECT_EQ(await_exit(silent).failure().kind(), v1::Failure::BUG);
  EXPECT_THAT(await_exit(silent).failure().message(), HasSubstr("exited with status 3"));
  const v1::RunId fail = start_run("fail");
  EXPECT_EQ(await_exit(fail).failure().kind(), v1::Failure::USER);
  EXPECT_EQ(await_exit(fail).failure().field(), "data.train");
  EXPECT_EQ(await_exit(fail).failure().message(), "data.train is empty");
}

TEST_F(AgentTest, IgnoresATornLastEvent) {
  start_agent();
  const v1::RunId run = start_run("torn");
  EXPECT_THAT(await_exit(run).failure().message(), HasSubstr("signal 9"));
  EXPECT_EQ(steps(run), count_to(3));
}

TEST_F(AgentTest, KillsARankWhoseEventsAreUnreadable) {
  start_agent();
  const v1::RunId run = start_run("garbage");
  EXPECT_EQ(await_exit(run).failure().kind(), v1::Failure::BUG);
  EXPECT_THAT(await_exit(run).failure().message(), HasSubstr("unreadable at byte"));
  EXPECT_EQ(steps(run), count_to(3));
  EXPECT_TRUE(await_dead(await_pid(run)));
}

TEST_F(AgentTest, KillsAHungRank) {
  start_agent();
  v1::Prepare prepare = prepare_message("hang", 1);
  prepare.mutable_spec()->mutable_resources()->mutable_hang_timeout()->set_nanos(200'000'000);
  const v1::RunId run = start_run(prepare);
  const v1::Failure failure = await_exit(run).failure();
  EXPECT_EQ(failure.kind(), v1::Failure::HANG);
  EXPECT_THAT(failure.message(), HasSubstr("no progress for 0.2 s"));
  EXPECT_TRUE(await_dead(await_pid(run)));
}

// Asked again and again, a rank that hangs is found all the same.
TEST_F(AgentTest, TellsOfAHungRankAndLeavesTimeToAskWhatItWaitsFor) {
  start_agent();
  v1::Prepare prepare = prepare_message("hang-1", 2);
  prepare.mutable_spec()->mutable_resources()->mutable_hang_timeout()->set_seconds(1);
  const v1::RunId run = start_run(prepare);
  ASSERT_GT(await_pid(run, 1), 0);
  const auto records = [&] {
    const auto events = coordinator_->events(run, 1, v1::RANK_STREAM_EVENTS);
    return std::ranges::count_if(events, &v1::TrainerEvent::has_collectives);
  };
  int asked = 0;
  const auto ask = [&] {
    v1::SessionResponse message;
    *message.mutable_relay()->mutable_run() = run;
    message.mutable_relay()->add_ranks(1);
    message.mutable_relay()->mutable_command()->mutable_record_collectives();
    coordinator_->send(message);
    ++asked;
    return coordinator_->await([&] { return records() == asked; });
  };
  const auto has_told = [&] {
    return std::ranges::any_of(coordinator_->received(), [](const v1::SessionRequest& message) {
      return message.rank_hung().rank() == 1;
    });
  };
  while (!has_told()) ASSERT_TRUE(ask());
  EXPECT_TRUE(ask()) << "it lives on for a while";
  EXPECT_TRUE(coordinator_->events(run, 0, v1::RANK_STREAM_EVENTS).back().has_started())
      << "only rank 1 was asked";
  const v1::RankExited exited = await_exit(run, 1);
  EXPECT_EQ(exited.failure().kind(), v1::Failure::HANG);
  EXPECT_FALSE(exited.was_killed());
}

TEST_F(AgentTest, SaysWhichRanksItWasToldToKill) {
  start_agent();
  const v1::RunId run = start_run("hang");
  ASSERT_GT(await_pid(run), 0);
  send_kill(run, 0);
  EXPECT_TRUE(await_exit(run).was_killed());
}

TEST_F(AgentTest, AsksARankToStop) {
  start_agent();
  const v1::RunId run = start_run("obedient");
  ASSERT_GT(await_pid(run), 0);
  send_kill(run, 60'000);
  EXPECT_FALSE(await_exit(run).has_failure());
  EXPECT_TRUE(coordinator_->events(run, 0, v1::RANK_STREAM_EVENTS).back().finished().stopped());
}

TEST_F(AgentTest, KillsARankAndItsChildrenAfterTheGrace) {
  start_agent();
  const v1::RunId run = start_run("stubborn");
  const pid_t pid = await_pid(run);
  ASSERT_TRUE(coordinator_->await([&] { return steps(run).size() > 2; }));
  const auto events = coordinator_->events(run, 0, v1::RANK_STREAM_EVENTS);
  const pid_t child = std::stoi(events[1].log().text().substr(6));
  send_kill(run, 100);
  EXPECT_EQ(await_exit(run).failure().message(), "rank 0 was killed: the user cancelled the job");
  EXPECT_TRUE(await_dead(pid));
  EXPECT_TRUE(await_dead(child));
}

TEST_F(AgentTest, AnswersForRunsItDoesNotHave) {
  start_agent();
  ASSERT_TRUE(coordinator_->await_message([](const auto& m) { return m.has_hello(); }));
  send_kill(run_id("unknown"), 0);
  EXPECT_TRUE(await_run_ended(run_id("unknown")));
  send_start(run_id("other"), {});
  EXPECT_TRUE(await_run_ended(run_id("other")));
}

TEST_F(AgentTest, EndsAPreparedRunThatIsKilled) {
  start_agent();
  ASSERT_TRUE(coordinator_->await_message([](const auto& m) { return m.has_hello(); }));
  v1::SessionResponse message;
  *message.mutable_prepare() = prepare_message("hang", 1);
  coordinator_->send(message);
  await_prepared(run_id("hang"));
  send_kill(run_id("hang"), 0);
  EXPECT_TRUE(await_run_ended(run_id("hang")));
}

TEST_F(AgentTest, RefusesDevicesItDoesNotHave) {
  start_agent();
  ASSERT_TRUE(coordinator_->await_message([](const auto& m) { return m.has_hello(); }));
  v1::SessionResponse message;
  *message.mutable_prepare() = prepare_message("steps-1", 1);
  message.mutable_prepare()->mutable_ranks(0)->set_device_index(8);
  coordinator_->send(message);
  const v1::Failure refusal = await_prepared(run_id("steps-1")).refusal();
  EXPECT_EQ(refusal.kind(), v1::Failure::DEVICE);
  EXPECT_THAT(refusal.message(), HasSubstr("no cpu device 8"));
}

TEST_F(AgentTest, RefusesAJobIdThatLeavesTheStateDirectory) {
  start_agent();
  ASSERT_TRUE(coordinator_->await_message([](const auto& m) { return m.has_hello(); }));
  v1::SessionResponse message;
  *message.mutable_prepare() = prepare_message("../../escape", 1);
  coordinator_->send(message);
  EXPECT_TRUE(await_prepared(run_id("../../escape")).has_refusal());
}

TEST_F(AgentTest, ReportsATrainerThatCannotBeStarted) {
  trainer_ = "/nowhere/tessera-trainer";
  start_agent();
  const v1::RunId run = start_run("steps-1", 2);
  EXPECT_THAT(await_exit(run, 0).failure().message(), HasSubstr("No such file"));
  EXPECT_TRUE(await_exit(run, 1).has_failure());
  EXPECT_TRUE(await_run_ended(run));
}

TEST_F(AgentTest, ForwardsOutputLineByLine) {
  start_agent();
  const v1::RunId run = start_run("print-lines");
  await_exit(run);
  EXPECT_THAT(output(run),
              ElementsAre("plain", "bad \xEF\xBF\xBD byte", "to stderr",
                          std::string(kMaxLineBytes, 'x') + " [cut: the line has 10000 bytes]",
                          "no newline"));
  EXPECT_EQ(coordinator_->events(run, 0, v1::RANK_STREAM_OUTPUT)[0].log().severity(),
            v1::LogLine::OUTPUT);
}

TEST_F(AgentTest, GivesRanksTheirShareOfTheCores) {
  start_agent();
  v1::Prepare prepare = prepare_message("print-environment", 1);
  prepare.mutable_spec()->mutable_resources()->set_cpu_threads(3);
  const v1::RunId run = start_run(prepare);
  await_exit(run);
  EXPECT_THAT(output(run),
              ElementsAre("OMP_NUM_THREADS=3", "MKL_NUM_THREADS=3", "OMP_WAIT_POLICY=passive",
                          "CUDA_VISIBLE_DEVICES=", "session 1", "cwd rank-0"));
}

TEST_F(AgentTest, BoundsTheOutputItForwards) {
  start_agent();
  const v1::RunId run = start_run("print-spam");
  EXPECT_FALSE(await_exit(run).has_failure());
  const std::vector<std::string> lines = output(run);
  EXPECT_EQ(lines.size(), (kMaxOutputBytes >> 10) + 1);
  EXPECT_THAT(lines.back(), HasSubstr("wrote more than 16 MiB"));
}

TEST_F(AgentTest, RenewsTheLeaseWhileConnectedOnly) {
  start_agent();
  const v1::RunId run = start_run("hang");
  ASSERT_GT(await_pid(run), 0);
  const std::string lease = (run_directory(run) / "lease").string();
  const timespec past[2] = {{1, 0}, {1, 0}};
  const auto renewed = [&] {
    struct stat info;
    return ::stat(lease.c_str(), &info) == 0 && info.st_mtime > 1;
  };
  ASSERT_EQ(::utimensat(AT_FDCWD, lease.c_str(), past, 0), 0);
  EXPECT_TRUE(coordinator_->await(renewed));  // Heartbeats wake it.
  coordinator_->stop();
  // The stream's end may still be on its way: it has come when the agent says so.
  ASSERT_TRUE(await_log("no coordinator at"));
  ASSERT_EQ(::utimensat(AT_FDCWD, lease.c_str(), past, 0), 0);
  ::usleep(300'000);  // Longer than a heartbeat: it would have been renewed.
  EXPECT_FALSE(renewed());
  coordinator_->start();
  EXPECT_TRUE(coordinator_->await(renewed));
}

TEST_F(AgentTest, RenewsTheLeaseAsOfWhatTheCoordinatorHeard) {
  start_agent();
  const v1::RunId run = start_run("hang");
  ASSERT_GT(await_pid(run), 0);
  const std::string lease = (run_directory(run) / "lease").string();
  const auto age = [&] {
    struct stat info;
    timespec now;
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    if (::stat(lease.c_str(), &info) != 0) return 1e9;
    return static_cast<double>(now.tv_sec - info.st_mtim.tv_sec) +
           1e-9 * static_cast<double>(now.tv_nsec - info.st_mtim.tv_nsec);
  };
  coordinator_->be_deaf(true);
  // The session stays, its heartbeats go out, and still the lease grows old.
  EXPECT_TRUE(coordinator_->await([&] { return age() > 0.5; }));
  coordinator_->be_deaf(false);
  EXPECT_TRUE(coordinator_->await([&] { return age() < 0.3; }));
}

}  // namespace
}  // namespace tessera::agent
