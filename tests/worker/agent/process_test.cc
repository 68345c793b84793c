#include "worker/agent/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <fstream>

#include "tests/worker/agent/temp_dir.h"
#include "worker/agent/oom_watch.h"

namespace tessera::agent {
namespace {

absl::Status commit(const ProcessId&) { return absl::OkStatus(); }

class ProcessTest : public testing::Test {
 protected:
  ProcessOptions shell(const std::string& script) {
    ProcessOptions options;
    options.command = {"/bin/sh", "-c", script};
    options.environment = {"PATH=/usr/bin:/bin", "GREETING=hello"};
    options.directory = directory_.path();
    options.stdout_path = options.stderr_path = directory_ / "output";
    return options;
  }
  static Exit wait(Process& process) {
    pollfd ended{process.pidfd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ended, 1, 20'000), 1);
    return process.reap().value_or(Exit{});
  }
  std::string output() { return read_tail(directory_ / "output", 1 << 16); }

  TempDir directory_;
};

TEST_F(ProcessTest, RunsWithItsEnvironmentAndDirectory) {
  auto process = Process::start(shell("echo $GREETING; pwd; exit 7"), commit);
  ASSERT_TRUE(process.ok()) << process.status();
  const Exit exit = wait(**process);
  EXPECT_EQ(exit.kind, Exit::Kind::kCode);
  EXPECT_EQ(exit.value, 7);
  EXPECT_EQ(output(), "hello\n" + directory_.path().string() + "\n");
}

TEST_F(ProcessTest, SaysWhyAProgramCannotRun) {
  ProcessOptions options = shell("");
  options.command = {"/nowhere/program"};
  const auto process = Process::start(options, commit);
  EXPECT_EQ(process.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(process.status().message()), testing::HasSubstr("/nowhere/program"));
}

TEST_F(ProcessTest, RunsNothingThatWasNotCommitted) {
  const auto process =
      Process::start(shell("echo ran"), [](const ProcessId&) { return absl::DataLossError("no"); });
  EXPECT_EQ(process.status().message(), "no");
  EXPECT_EQ(output(), "");
}

TEST_F(ProcessTest, KillsTheWholeGroup) {
  auto process = Process::start(shell("sleep 1000 & echo $!; wait"), commit);
  ASSERT_TRUE(process.ok());
  while (output().empty()) ::usleep(2000);
  const pid_t grandchild = std::stoi(output());
  (*process)->kill_group(SIGKILL);
  EXPECT_EQ(wait(**process).value, SIGKILL);
  const auto alive = [&] {
    const auto stat = read_file("/proc/" + std::to_string(grandchild) + "/stat", 4096);
    return stat.ok() && stat->find(") Z ") == std::string::npos;
  };
  for (int i = 0; i < 1000 && alive(); ++i) ::usleep(5000);
  EXPECT_FALSE(alive());
}

TEST_F(ProcessTest, HandsOverOneDescriptorOnly) {
  const UniqueFd handed(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd forgotten(::open("/dev/null", O_RDONLY));
  ProcessOptions options = shell("ls -l /proc/$$/fd | grep -c /dev/null");
  options.inherited_fd = handed.get();
  auto process = Process::start(options, commit);
  ASSERT_TRUE(process.ok());
  wait(**process);
  EXPECT_EQ(output(), "2\n");  // Standard input and the one.
}

TEST_F(ProcessTest, AdoptsOnlyTheSameProcess) {
  ProcessId id;
  auto process = Process::start(shell("sleep 1000"), [&](const ProcessId& started) {
    id = started;
    return absl::OkStatus();
  });
  ASSERT_TRUE(process.ok());
  const auto same = ProcessId::parse(id.to_string());
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(*same, id);
  auto adopted = Process::adopt(id);
  ASSERT_TRUE(adopted.ok());
  EXPECT_FALSE((*adopted)->reap());
  ProcessId reused = id;
  ++reused.start_ticks;
  EXPECT_EQ(Process::adopt(reused).status().code(), absl::StatusCode::kNotFound);
  ProcessId other_boot = id;
  other_boot.boot_id = "another";
  EXPECT_EQ(Process::adopt(other_boot).status().code(), absl::StatusCode::kNotFound);
  (*adopted)->kill_group(SIGKILL);
  EXPECT_EQ(wait(**adopted).kind, Exit::Kind::kUnknown);
  EXPECT_EQ(Process::adopt(id).status().code(), absl::StatusCode::kNotFound);  // a zombie
  EXPECT_EQ(wait(**process).kind, Exit::Kind::kSignal);
}

TEST_F(ProcessTest, RefusesIdsThatAreNone) {
  for (const char* text : {"", "1", "1 2", "x 2 b", "0 2 b", "-1 2 b", "1 x b", "1 2 b c"}) {
    EXPECT_FALSE(ProcessId::parse(text).ok()) << text;
  }
}

TEST(OomWatch, SeesKillsSinceTheTickBeforeTheLast) {
  TempDir directory;
  const auto write = [&](int kills) {
    std::ofstream(directory / "events") << "low 0\noom 9\noom_kill " << kills << "\n";
  };
  write(3);
  OomWatch watch(directory / "events");
  EXPECT_FALSE(watch.recent());
  write(4);
  EXPECT_TRUE(watch.recent());
  watch.tick();
  EXPECT_TRUE(watch.recent());
  watch.tick();
  EXPECT_FALSE(watch.recent());
  EXPECT_FALSE(OomWatch(directory / "missing").recent());
}

}  // namespace
}  // namespace tessera::agent
