#include "server/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::server {

absl::StatusOr<StateDir> StateDir::open(const std::filesystem::path& path) {
  std::error_code failure;
  const std::filesystem::path absolute = std::filesystem::absolute(path).lexically_normal();
  if (!std::filesystem::exists(absolute, failure)) {
    std::filesystem::create_directories(absolute.parent_path(), failure);
    if (::mkdir(absolute.c_str(), 0700) != 0 && errno != EEXIST) {
      return absl::ErrnoToStatus(errno, absl::StrCat("--state-dir ", absolute.string()));
    }
  }
  const std::string lock = (absolute / "lock").string();
  const int fd = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("--state-dir: ", lock));
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("--state-dir ", absolute.string(), ": another tesserad runs on it"));
  }
  return StateDir(absolute, fd);
}

StateDir::StateDir(StateDir&& other) noexcept
    : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {}

StateDir::~StateDir() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

absl::Status StateDir::publish(const std::string& name, const std::string& content) const {
  const std::filesystem::path target = path_ / name;
  const std::filesystem::path beside = path_ / (name + ".new");
  std::ofstream file(beside);
  file << content;
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", beside.string()));
  std::error_code failure;
  std::filesystem::rename(beside, target, failure);
  if (failure)
    return absl::UnavailableError(absl::StrCat(target.string(), ": ", failure.message()));
  return absl::OkStatus();
}

}  // namespace tessera::server
