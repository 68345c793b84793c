// Who starts, keeps and stops a service of this machine: locks, processes and their supervision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <fstream>
#include <future>
#include <sstream>

#include "client/cli/child_process.h"
#include "client/cli/state_dir.h"
#include "client/cli/supervised.h"
#include "client/cpp/wait.h"
#include "tests/client/temp_dir.h"

namespace tessera::cli {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using SteadyClock = std::chrono::steady_clock;

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

template <class Condition>
bool eventually(Condition condition) {
  const auto give_up = SteadyClock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (SteadyClock::now() > give_up) return false;
    wait_for({}, milliseconds(5));
  }
  return true;
}

TEST(StateDirTest, CreatesTheFolder) {
  TempDir temp;
  const StateDir dir(temp.path() / "a" / "b");
  EXPECT_TRUE(dir.create().ok());
  EXPECT_TRUE(std::filesystem::is_directory(temp.path() / "a" / "b"));
}

TEST(StateDirTest, RefusesWhatCannotHoldState) {
  TempDir temp;
  const auto file = temp.write("file", "");
  EXPECT_THAT(std::string(StateDir(file / "x").create().message()),
              HasSubstr("choose another with --state-dir"));
  EXPECT_THAT(std::string(StateDir(temp.path() / std::string(120, 'x')).create().message()),
              HasSubstr("too long for a Unix socket"));
}

TEST(StateDirTest, OneUpAtATime) {
  TempDir temp;
  const StateDir dir(temp.path());
  EXPECT_FALSE(dir.is_up());
  {
    const auto lock = dir.lock_up(true);
    ASSERT_TRUE(lock.ok() && lock->has_value());
    EXPECT_TRUE(dir.is_up());
    EXPECT_TRUE(dir.exits_when_idle());
    EXPECT_FALSE(dir.lock_up(false)->has_value());
    EXPECT_TRUE(dir.exits_when_idle()) << "who does not get the lock leaves its note alone";
  }
  EXPECT_FALSE(dir.is_up());
  const auto lock = dir.lock_up(false);
  EXPECT_FALSE(dir.exits_when_idle());
}

TEST(StateDirTest, ClientsKeepAServiceAndWaitForOneThatStops) {
  TempDir temp;
  const StateDir dir(temp.path());
  {
    const auto first = dir.attach({}, milliseconds(0));
    const auto second = dir.attach({}, milliseconds(0));
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_FALSE(dir.exclude_clients()->has_value());
  }
  auto stopping = dir.exclude_clients();
  ASSERT_TRUE(stopping->has_value());
  EXPECT_TRUE(absl::IsDeadlineExceeded(dir.attach({}, milliseconds(0)).status()));
  auto waiting =
      std::async(std::launch::async, [&] { return dir.attach({}, std::chrono::seconds(20)).ok(); });
  stopping->reset();
  EXPECT_TRUE(waiting.get());
}

TEST(ChildProcessTest, RunsInASessionOfItsOwnWithNothingInherited) {
  TempDir temp;
  const auto log = temp.path() / "log";
  const auto pid = start_process(
      {.program = "/bin/sh", .arguments = {"-c", "ls /proc/$$/fd; exit 3"}, .log = log});
  ASSERT_TRUE(pid.ok()) << pid.status();
  int status = 0;
  ASSERT_EQ(waitpid(*pid, &status, 0), *pid);
  EXPECT_EQ(describe_wait_status(status), "exit code 3");
  EXPECT_EQ(read(log), "0\n1\n2\n");
}

TEST(ChildProcessTest, AMissingProgramIsAnError) {
  EXPECT_THAT(std::string(start_process({.program = "/nope"}).status().message()),
              HasSubstr("cannot run /nope: No such file or directory"));
}

Command shell(const std::string& script, const std::filesystem::path& log) {
  return {.program = "/bin/sh", .arguments = {"-c", script}, .log = log, .ends_with_parent = true};
}

TEST(SupervisedTest, StartsAgainWhatDies) {
  TempDir temp;
  const auto log = temp.path() / "log";
  Supervised program("it", shell("echo $$; exec sleep 1000", log));
  ASSERT_TRUE(program.tick(SteadyClock::now(), 20).ok());
  ASSERT_TRUE(eventually([&] { return read(log).ends_with('\n'); }));
  const std::string first = read(log);
  ASSERT_EQ(kill(std::stoi(first), SIGKILL), 0);
  std::string news;
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(program.tick(SteadyClock::now(), 20).ok());
    news += program.take_news();
    return read(log).size() > first.size();
  }));
  EXPECT_EQ(news, "it ended with signal 9 (Killed)");
  program.stop();
  EXPECT_NE(kill(std::stoi(first), 0), 0);
}

TEST(SupervisedTest, GivesUpOnWhatKeepsDying) {
  TempDir temp;
  Supervised program("it", shell("echo x; exit 1", temp.path() / "log"));
  absl::Status status;
  // A clock of its own: delays pass at once, and every death falls within the window.
  auto now = SteadyClock::now();
  EXPECT_TRUE(eventually([&] {
    status = program.tick(now, 5);
    now += milliseconds(10);
    return !status.ok();
  }));
  EXPECT_EQ(status.message(), "it ended 5 times within a minute; giving up");
  EXPECT_EQ(read(temp.path() / "log"), "x\nx\nx\nx\nx\n");
}

TEST(SupervisedTest, StopEndsIt) {
  TempDir temp;
  const auto log = temp.path() / "log";
  const char* script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done";
  Supervised program("it", shell(script, log));
  ASSERT_TRUE(program.tick(SteadyClock::now(), 1).ok());
  ASSERT_TRUE(eventually([&] { return read(log) == "up\n"; }));
  program.stop();
  EXPECT_EQ(read(log), "up\nbye\n");
}

}  // namespace
}  // namespace tessera::cli
