#include "client/cli/own_service.h"

#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/cli/child_process.h"
#include "client/cli/terminal.h"
#include "client/cpp/wait.h"

namespace tessera::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{50};
constexpr std::chrono::seconds kReadyTimeout{60};
// A coordinator alone takes jobs too: they wait for an agent.
constexpr std::chrono::seconds kAgentTimeout{20};
constexpr std::chrono::seconds kGoneTimeout{60};
constexpr std::uintmax_t kMaxLogBytes = 16 << 20;
constexpr char kErrorMark[] = "error: ";

bool any_ready(const std::vector<v1::Node>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const v1::Node& node) { return node.state() == v1::Node::READY; });
}

// The last error that the log tells from `begin` on.
std::string last_error(const std::filesystem::path& log, std::uintmax_t begin) {
  std::ifstream file(log);
  file.seekg(static_cast<std::streamoff>(begin));
  std::string found = "it gave no reason";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kErrorMark)) found = line.substr(sizeof(kErrorMark) - 1);
  }
  return found;
}

}  // namespace

absl::Status OwnService::start() {
  std::error_code error;
  log_begin_ = std::filesystem::file_size(dir_.log(), error);
  if (error || log_begin_ > kMaxLogBytes) {
    std::filesystem::remove(dir_.log(), error);
    log_begin_ = 0;
  }
  auto pid = start_process({.program = program_, .arguments = arguments_, .log = dir_.log()});
  if (!pid.ok()) return pid.status();
  pid_ = *pid;
  return absl::OkStatus();
}

absl::Status OwnService::check_started() {
  int status = 0;
  if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return absl::OkStatus();
  pid_ = -1;
  // Another client was quicker: its service, or the next one, serves both.
  if (dir_.is_up() || (WIFEXITED(status) && WEXITSTATUS(status) == kUsage)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("the service did not start: ", last_error(dir_.log(), log_begin_), "; see ",
                   dir_.log().string()));
}

absl::Status OwnService::ensure(Client& client, std::stop_token stop) {
  const auto begin = SteadyClock::now();
  while (SteadyClock::now() - begin < kReadyTimeout) {
    const auto nodes = client.nodes(stop);
    if (nodes.ok() && (any_ready(*nodes) || SteadyClock::now() - begin > kAgentTimeout)) {
      return absl::OkStatus();
    }
    if (absl::Status status = check_started(); !status.ok()) return status;
    if (!nodes.ok() && pid_ <= 0 && !dir_.is_up()) {
      if (absl::Status status = start(); !status.ok()) return status;
    }
    if (!wait_for(stop, kPoll)) return absl::CancelledError("interrupted");
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the service did not get ready within a minute; see ", dir_.log().string()));
}

void OwnService::wait_until_gone(Client& client, std::stop_token stop) {
  if (!dir_.exits_when_idle()) return;
  const std::vector<v1::Job::State> unfinished{v1::Job::QUEUED,   v1::Job::STARTING,
                                               v1::Job::RUNNING,  v1::Job::RESTARTING,
                                               v1::Job::STOPPING, v1::Job::CANCELLING};
  const auto give_up = SteadyClock::now() + kGoneTimeout;
  while (dir_.is_up() && SteadyClock::now() < give_up) {
    const auto jobs = client.list(unfinished, 1, stop);
    if (jobs.ok() && !jobs->empty()) break;
    if (!wait_for(stop, kPoll)) break;
  }
  if (pid_ > 0 && !dir_.is_up()) waitpid(pid_, nullptr, 0);
}

}  // namespace tessera::cli
