#include "client/cli/supervised.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cpp/wait.h"

namespace tessera::cli {

Supervised::~Supervised() {
  if (!is_running()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Supervised::reap(Time now) {
  int status = 0;
  if (!is_running() || waitpid(pid_, &status, WNOHANG) != pid_) return;
  pid_ = -1;
  news_ = absl::StrCat(name_, " ended with ", describe_wait_status(status));
  deaths_.push_back(now);
  while (now - deaths_.front() > kWindow) deaths_.pop_front();
  const size_t doublings = std::min<size_t>(deaths_.size() - 1, 10);
  next_start_ = now + std::min(kFirstDelay * (1 << doublings), kLastDelay);
}

absl::Status Supervised::tick(Time now, size_t max_deaths) {
  reap(now);
  if (is_running()) return absl::OkStatus();
  if (deaths_.size() >= max_deaths) {
    return absl::InternalError(
        absl::StrCat(name_, " ended ", deaths_.size(), " times within a minute; giving up"));
  }
  if (now < next_start_) return absl::OkStatus();
  auto pid = start_process(command_);
  if (!pid.ok()) return pid.status();
  pid_ = *pid;
  return absl::OkStatus();
}

void Supervised::stop() {
  if (!is_running()) return;
  kill(pid_, SIGTERM);
  const Time give_up = std::chrono::steady_clock::now() + kStopTimeout;
  while (is_running() && std::chrono::steady_clock::now() < give_up) {
    wait_for({}, std::chrono::milliseconds(10));
    reap(std::chrono::steady_clock::now());
  }
  if (!is_running()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace tessera::cli
