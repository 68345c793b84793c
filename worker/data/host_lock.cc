#include "worker/data/host_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <system_error>

namespace tessera {
namespace {

FileDescriptor open_lock(const std::filesystem::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file.is_open()) {
    throw std::system_error(errno, std::generic_category(), "open " + path.string());
  }
  return file;
}

// Returns whether the lock is held now.
bool lock(int fd, int operation) {
  while (::flock(fd, operation) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "flock");
  }
  return true;
}

}  // namespace

HostLock HostLock::wait(const std::filesystem::path& path, const std::function<void()>& waiting) {
  FileDescriptor file = open_lock(path);
  if (lock(file.get(), LOCK_EX | LOCK_NB)) return HostLock(std::move(file));
  auto locked = std::async(std::launch::async, [fd = file.get()] { lock(fd, LOCK_EX); });
  while (locked.wait_for(std::chrono::seconds(1)) != std::future_status::ready) waiting();
  locked.get();
  return HostLock(std::move(file));
}

std::optional<HostLock> HostLock::try_now(const std::filesystem::path& path) {
  FileDescriptor file = open_lock(path);
  if (!lock(file.get(), LOCK_EX | LOCK_NB)) return std::nullopt;
  return HostLock(std::move(file));
}

}  // namespace tessera
