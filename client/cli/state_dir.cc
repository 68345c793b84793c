#include "client/cli/state_dir.h"

#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/cpp/wait.h"

namespace tessera::cli {
namespace {

constexpr char kIdleNote[] = "exit-when-idle";

}  // namespace

absl::Status StateDir::create() const {
  const size_t socket_length = address().size() - strlen("unix:");
  if (socket_length >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state directory's path is too long for a Unix socket (", socket_length,
                     " characters, at most ", sizeof(sockaddr_un::sun_path) - 1,
                     "); choose another with --state-dir"));
  }
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (!error && access(path_.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot use the state directory ", path_.string(),
                                                 ": ", error.message(),
                                                 "; choose another with --state-dir"));
}

absl::StatusOr<std::optional<FileLock>> StateDir::lock_up(bool exit_when_idle) const {
  auto lock = FileLock::try_lock(path_ / "up.lock", FileLock::Mode::kExclusive);
  if (!lock.ok() || !lock->has_value()) return lock;
  const absl::Status written =
      (*lock)->write(absl::StrCat(getpid(), "\n", exit_when_idle ? kIdleNote : "", "\n"));
  if (!written.ok()) return written;
  return lock;
}

bool StateDir::exits_when_idle() const {
  std::ifstream file(path_ / "up.lock");
  std::string pid, note;
  return std::getline(file, pid) && std::getline(file, note) && note == kIdleNote;
}

absl::StatusOr<FileLock> StateDir::attach(std::stop_token stop,
                                          std::chrono::milliseconds timeout) const {
  const auto give_up = std::chrono::steady_clock::now() + timeout;
  Backoff backoff;
  while (true) {
    auto lock = FileLock::try_lock(path_ / "clients.lock", FileLock::Mode::kShared);
    if (!lock.ok()) return lock.status();
    if (lock->has_value()) return std::move(**lock);
    if (std::chrono::steady_clock::now() >= give_up) {
      return absl::DeadlineExceededError(
          absl::StrCat("a service that is stopping holds ", path_.string(), " for too long"));
    }
    if (!backoff.wait(stop)) return absl::CancelledError("interrupted");
  }
}

absl::StatusOr<std::optional<FileLock>> StateDir::exclude_clients() const {
  return FileLock::try_lock(path_ / "clients.lock", FileLock::Mode::kExclusive);
}

}  // namespace tessera::cli
