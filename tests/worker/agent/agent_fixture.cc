#include "tests/worker/agent/agent_fixture.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <thread>

#include "worker/agent/file_util.h"

namespace tessera::agent {
namespace {

namespace fs = std::filesystem;

// For what no message announces.
bool await(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + kAwaitLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::vector<std::string> environment() {
  std::vector<std::string> result;
  for (char** entry = ::environ; *entry != nullptr; ++entry) result.emplace_back(*entry);
  return result;
}

}  // namespace

void AgentTest::SetUp() {
  ::signal(SIGPIPE, SIG_IGN);
  std::string name = (fs::temp_directory_path() / "agent-XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  directory_ = name;
  coordinator_ = std::make_unique<FakeCoordinator>(directory_ / "socket");
  coordinator_->start();
}

void AgentTest::TearDown() {
  if (agent_) kill_agent();
  std::vector<fs::path> pids;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(directory_ / "state", error)) {
    if (entry.path().filename() == "pid") pids.push_back(entry.path());
  }
  for (const fs::path& path : pids) {
    const auto text = read_file(path, 1024);
    const auto id = text.ok() ? ProcessId::parse(*text) : text.status();
    const auto process = id.ok() ? Process::adopt(*id) : id.status();
    if (!process.ok()) continue;
    (*process)->kill_group(SIGKILL);
    EXPECT_TRUE(await_dead((*process)->pid()));
  }
  coordinator_->stop();
  EXPECT_THAT(coordinator_->violations(), testing::IsEmpty());
  if (HasFailure()) std::cerr << agent_log();
  fs::remove_all(directory_);
}

void AgentTest::start_agent(const std::vector<std::string>& flags) {
  ProcessOptions options;
  options.command = {AGENT_PATH,
                     "--coordinator",
                     coordinator_->target(),
                     "--node",
                     "test-node",
                     "--state-dir",
                     (directory_ / "state").string(),
                     "--trainer",
                     trainer_,
                     "--cpu-slots",
                     "8",
                     "--cuda-devices",
                     "none"};
  options.command.insert(options.command.end(), flags.begin(), flags.end());
  options.environment = environment();
  options.directory = directory_;
  options.stdout_path = options.stderr_path = directory_ / "agent.log";
  options.dies_with_parent = true;
  auto agent = Process::start(options, [](const ProcessId&) { return absl::OkStatus(); });
  ASSERT_TRUE(agent.ok()) << agent.status();
  agent_ = *std::move(agent);
}

void AgentTest::kill_agent() {
  agent_->kill_group(SIGKILL);
  ASSERT_TRUE(await([&] { return agent_->reap().has_value(); }));
  agent_.reset();
}

int AgentTest::await_agent_exit() {
  std::optional<Exit> exit;
  if (!await([&] { return (exit = agent_->reap()).has_value(); })) return -1;
  agent_.reset();
  return exit->kind == Exit::Kind::kCode ? exit->value : -1;
}

std::string AgentTest::agent_log() const { return read_tail(directory_ / "agent.log", 1 << 16); }

v1::RunId AgentTest::run_id(const std::string& job, int attempt) const {
  v1::RunId id;
  id.set_job_id(job);
  id.set_attempt(attempt);
  return id;
}

v1::Prepare AgentTest::prepare_message(const std::string& job, int num_ranks) const {
  v1::Prepare prepare;
  *prepare.mutable_run() = run_id(job);
  prepare.mutable_spec()->set_name(job);
  prepare.mutable_spec()->mutable_resources()->set_device("cpu");
  prepare.mutable_spec()->mutable_training()->set_output_dir(directory_.string());
  prepare.set_world_size(num_ranks);
  prepare.set_hosts_rank_zero(true);
  for (int rank = 0; rank < num_ranks; ++rank) {
    v1::Placement& placement = *prepare.add_ranks();
    placement.set_rank(rank);
    placement.set_node("test-node");
    placement.set_device_index(rank);
  }
  return prepare;
}

v1::RunId AgentTest::start_run(const std::string& job, int num_ranks) {
  return start_run(prepare_message(job, num_ranks));
}

v1::RunId AgentTest::start_run(const v1::Prepare& prepare) {
  EXPECT_TRUE(coordinator_->await_message([](const auto& m) { return m.has_hello(); }));
  v1::SessionResponse message;
  *message.mutable_prepare() = prepare;
  coordinator_->send(message);
  send_start(prepare.run(), await_prepared(prepare.run()));
  return prepare.run();
}

v1::Prepared AgentTest::await_prepared(const v1::RunId& run) {
  v1::Prepared prepared;
  EXPECT_TRUE(coordinator_->await_message([&](const v1::SessionRequest& m) {
    if (!m.has_prepared() || m.prepared().run().job_id() != run.job_id()) return false;
    prepared = m.prepared();
    return true;
  }));
  return prepared;
}

void AgentTest::send_start(const v1::RunId& run, const v1::Prepared& prepared) {
  v1::SessionResponse message;
  *message.mutable_start()->mutable_run() = run;
  *message.mutable_start()->mutable_rendezvous() = prepared.rendezvous();
  coordinator_->send(message);
}

void AgentTest::send_kill(const v1::RunId& run, int grace_ms) {
  v1::SessionResponse message;
  *message.mutable_kill()->mutable_run() = run;
  message.mutable_kill()->set_grace_ms(grace_ms);
  message.mutable_kill()->set_reason("the user cancelled the job");
  coordinator_->send(message);
}

void AgentTest::send_release(const v1::RunId& run) {
  v1::SessionResponse message;
  *message.mutable_release()->mutable_run() = run;
  coordinator_->send(message);
}

void AgentTest::open_gate() const { std::ofstream(directory_ / "gate").put('x'); }

v1::RankExited AgentTest::await_exit(const v1::RunId& run, int rank) {
  v1::RankExited exited;
  EXPECT_TRUE(coordinator_->await_message([&](const v1::SessionRequest& m) {
    if (!m.has_rank_exited() || m.rank_exited().run().job_id() != run.job_id() ||
        m.rank_exited().rank() != rank) {
      return false;
    }
    exited = m.rank_exited();
    return true;
  }));
  return exited;
}

bool AgentTest::await_run_ended(const v1::RunId& run, int times) {
  return coordinator_->await_message(
      [&](const v1::SessionRequest& m) {
        return m.has_run_ended() && m.run_ended().run().job_id() == run.job_id();
      },
      times);
}

pid_t AgentTest::await_pid(const v1::RunId& run, int rank) {
  std::vector<v1::TrainerEvent> events;
  const auto started = [&] {
    events = coordinator_->events(run, rank, v1::RANK_STREAM_EVENTS);
    return !events.empty();
  };
  if (!coordinator_->await(started)) return 0;
  return events[0].started().pid();
}

std::vector<int> AgentTest::steps(const v1::RunId& run, int rank) {
  std::vector<int> steps;
  for (const auto& event : coordinator_->events(run, rank, v1::RANK_STREAM_EVENTS)) {
    if (event.has_step()) steps.push_back(event.step().step());
  }
  return steps;
}

std::vector<std::string> AgentTest::output(const v1::RunId& run, int rank) {
  std::vector<std::string> lines;
  for (const auto& event : coordinator_->events(run, rank, v1::RANK_STREAM_OUTPUT)) {
    EXPECT_EQ(event.log().rank(), rank);
    lines.push_back(event.log().text());
  }
  return lines;
}

fs::path AgentTest::run_directory(const v1::RunId& run) const {
  return directory_ / "state" / "runs" / run.job_id() / std::to_string(run.attempt());
}

bool AgentTest::await_gone(const fs::path& path) const {
  return await([&] { return !fs::exists(path); });
}

bool AgentTest::await_dead(pid_t pid) const {
  return await([&] {
    const auto stat = read_file("/proc/" + std::to_string(pid) + "/stat", 4096);
    return !stat.ok() || stat->substr(stat->rfind(')') + 2, 1) == "Z";
  });
}

bool AgentTest::await_log(const std::string& text) const {
  return await([&] { return agent_log().find(text) != std::string::npos; });
}

std::vector<int> count_to(int last) {
  std::vector<int> numbers(static_cast<size_t>(last));
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

}  // namespace tessera::agent
