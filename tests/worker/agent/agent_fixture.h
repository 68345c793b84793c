// Runs the agent binary against a FakeCoordinator, in a directory of its own; leaves nothing
// running.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/worker/agent/fake_coordinator.h"
#include "worker/agent/process.h"

namespace tessera::agent {

class AgentTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Starts the agent with the flags it needs and `flags`.
  void start_agent(const std::vector<std::string>& flags = {});
  // SIGKILL, and waits until it is gone.
  void kill_agent();
  // Waits for the agent's own end; its exit code.
  int await_agent_exit();
  void signal_agent(int signal) { agent_->kill_group(signal); }
  std::string agent_log() const;

  v1::RunId run_id(const std::string& job, int attempt = 1) const;
  // A job of that name on `num_ranks` CPU slots of this node; the fake trainer acts by the name.
  v1::Prepare prepare_message(const std::string& job, int num_ranks) const;
  // Prepares, waits for Prepared, and starts.
  v1::RunId start_run(const std::string& job, int num_ranks = 1);
  v1::RunId start_run(const v1::Prepare& prepare);
  v1::Prepared await_prepared(const v1::RunId& run);
  void send_start(const v1::RunId& run, const v1::Prepared& prepared);
  void send_kill(const v1::RunId& run, int grace_ms);
  void send_release(const v1::RunId& run);
  // Lets gated trainers go on.
  void open_gate() const;

  v1::RankExited await_exit(const v1::RunId& run, int rank = 0);
  bool await_run_ended(const v1::RunId& run, int times = 1);
  // The rank's process, once it has said Started.
  pid_t await_pid(const v1::RunId& run, int rank = 0);
  // Step numbers of the committed step events, in order.
  std::vector<int> steps(const v1::RunId& run, int rank = 0);
  // Texts of the committed output lines, in order.
  std::vector<std::string> output(const v1::RunId& run, int rank = 0);
  std::filesystem::path run_directory(const v1::RunId& run) const;
  bool await_gone(const std::filesystem::path& path) const;
  bool await_dead(pid_t pid) const;
  bool await_log(const std::string& text) const;

  std::string trainer_ = FAKE_TRAINER_PATH;
  std::filesystem::path directory_;
  std::unique_ptr<FakeCoordinator> coordinator_;
  std::unique_ptr<Process> agent_;
};

// 1 to `last`.
std::vector<int> count_to(int last);

}  // namespace tessera::agent
