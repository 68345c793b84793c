#include "client/cli/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace tessera::cli {

absl::StatusOr<std::optional<FileLock>> FileLock::try_lock(const std::filesystem::path& path,
                                                           Mode mode) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path.string()));
  FileLock lock(fd);
  if (flock(fd, (mode == Mode::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK) return std::nullopt;
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", path.string()));
}

bool FileLock::is_held(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const FileLock lock(fd);
  return flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

absl::Status FileLock::write(const std::string& note) {
  if (ftruncate(fd_, 0) != 0 ||
      pwrite(fd_, note.data(), note.size(), 0) != static_cast<ssize_t>(note.size())) {
    return absl::ErrnoToStatus(errno, "cannot write a lock file");
  }
  return absl::OkStatus();
}

}  // namespace tessera::cli
