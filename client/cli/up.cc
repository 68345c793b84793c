#include "client/cli/up.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/supervised.h"
#include "client/cpp/client.h"
#include "client/cpp/wait.h"

namespace tessera::cli {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kTick{50};
constexpr std::chrono::seconds kStartTimeout{60};
// A predecessor that is still ending may hold what they need for a moment.
constexpr size_t kMaxDeathsAtStart = 6;
constexpr size_t kMaxDeaths = 20;
constexpr size_t kMaxListed = 1000;

const std::vector<v1::Job::State> kUnfinished{v1::Job::QUEUED,   v1::Job::STARTING,
                                              v1::Job::RUNNING,  v1::Job::RESTARTING,
                                              v1::Job::STOPPING, v1::Job::CANCELLING};

Command coordinator_command(const StateDir& dir, const UpOptions& options) {
  return {.program = options.programs / "tesserad",
          .arguments = {"--state-dir", dir.path().string(), "--listen", dir.address(), "--http",
                        options.http},
          .ends_with_parent = true};
}

Command agent_command(const StateDir& dir, const UpOptions& options) {
  Command command{.program = options.programs / "tessera-agent",
                  .arguments = {"--coordinator", dir.address(), "--state-dir",
                                (dir.path() / "agent").string(), "--kill-on-exit"},
                  .ends_with_parent = true};
  const auto add = [&command](const char* flag, const std::string& value) {
    command.arguments.insert(command.arguments.end(), {flag, value});
  };
  if (!options.node.empty()) add("--node", options.node);
  if (!options.trainer.empty()) add("--trainer", options.trainer.string());
  if (options.cpu_slots > 0) add("--cpu-slots", absl::StrCat(options.cpu_slots));
  return command;
}

class Service {
 public:
  Service(const StateDir& dir, const UpOptions& options, const Terminal& terminal, Client client)
      : dir_(dir),
        options_(options),
        terminal_(terminal),
        client_(std::move(client)),
        coordinator_("tesserad", coordinator_command(dir, options)),
        agent_("tessera-agent", agent_command(dir, options)) {}

  ExitCode run(std::stop_token stop) {
    absl::Status status = start(stop);
    if (status.ok() && !stop.stop_requested()) {
      announce();
      status = keep_running(stop);
    }
    const ExitCode code = status.ok() ? kSucceeded : kUnreachable;
    if (!status.ok()) print_errors(terminal_, {std::string(status.message())});
    shut_down();
    return code;
  }

 private:
  absl::Status start(std::stop_token stop) {
    const auto give_up = SteadyClock::now() + kStartTimeout;
    bool answers = false;
    while (SteadyClock::now() < give_up) {
      if (absl::Status status = tick(coordinator_, kMaxDeathsAtStart); !status.ok()) return status;
      if (answers) {
        if (absl::Status status = tick(agent_, kMaxDeathsAtStart); !status.ok()) return status;
      }
      const auto nodes = client_.nodes(stop);
      answers = answers || nodes.ok();
      if (nodes.ok() && std::any_of(nodes->begin(), nodes->end(), [](const v1::Node& node) {
            return node.state() == v1::Node::READY;
          })) {
        return absl::OkStatus();
      }
      if (!wait_for(stop, kTick)) return absl::OkStatus();
    }
    return absl::DeadlineExceededError("the service did not get ready within a minute");
  }

  absl::Status tick(Supervised& program, size_t max_deaths) {
    absl::Status status = program.tick(SteadyClock::now(), max_deaths);
    const std::string news = program.take_news();
    if (!news.empty()) {
      terminal_.err << news << (status.ok() ? "; starting it again\n" : "\n") << std::flush;
    }
    return status;
  }

  absl::Status keep_running(std::stop_token stop) {
    while (wait_for(stop, kTick)) {
      for (Supervised* program : {&coordinator_, &agent_}) {
        if (absl::Status status = tick(*program, kMaxDeaths); !status.ok()) return status;
      }
      if (options_.exit_when_idle && is_idle()) break;
    }
    return absl::OkStatus();
  }

  // True once there is nothing to do. The lock is then kept: who comes now waits for the service
  // to be gone.
  bool is_idle() {
    auto lock = dir_.exclude_clients();
    if (!lock.ok() || !lock->has_value()) return false;
    const auto unfinished = client_.list(kUnfinished, 1);
    if (!unfinished.ok() || !unfinished->empty()) return false;
    no_clients_ = std::move(*lock);
    return true;
  }

  void announce() {
    std::string port;
    std::ifstream(dir_.http_port()) >> port;
    terminal_.out << "service   " << dir_.address() << '\n';
    if (!port.empty()) {
      const std::string host = options_.http.substr(0, options_.http.rfind(':'));
      terminal_.out << "dashboard http://" << host << ':' << port << "/\n";
    }
    terminal_.out << "state     " << dir_.path().string() << '\n' << std::flush;
  }

  void shut_down() {
    const auto unfinished = client_.list(kUnfinished, kMaxListed);
    agent_.stop();
    coordinator_.stop();
    if (!unfinished.ok() || unfinished->empty()) return;
    const bool one = unfinished->size() == 1;
    terminal_.err << unfinished->size() << (one ? " unfinished job goes" : " unfinished jobs go")
                  << " on from the last checkpoint at the next `tessera up`\n"
                  << std::flush;
  }

  const StateDir& dir_;
  const UpOptions& options_;
  const Terminal& terminal_;
  Client client_;
  Supervised coordinator_;
  Supervised agent_;
  std::optional<FileLock> no_clients_;
};

}  // namespace

ExitCode run_up(const StateDir& dir, const UpOptions& options, const Terminal& terminal,
                std::stop_token stop) {
  if (absl::Status status = dir.create(); !status.ok()) {
    print_errors(terminal, {std::string(status.message())});
    return kUsage;
  }
  const auto lock = dir.lock_up(options.exit_when_idle);
  if (!lock.ok() || !lock->has_value()) {
    print_errors(terminal,
                 {lock.ok() ? absl::StrCat("a service is already running in ", dir.path().string())
                            : std::string(lock.status().message())});
    return kUsage;
  }
  auto client = Client::connect(dir.address());
  if (!client.ok()) return report_failure(terminal, client.status(), dir.address());
  return Service(dir, options, terminal, std::move(*client)).run(stop);
}

}  // namespace tessera::cli
