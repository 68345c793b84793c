#include "server/security/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace tessera::server {
namespace {

constexpr std::uintmax_t kMaxBytes = 1 << 20;

absl::Status failed(const std::filesystem::path& path) {
  const int why = errno;
  return absl::ErrnoToStatus(why, path.string());
}

absl::Status write_new(const std::filesystem::path& path, std::string_view bytes) {
  ::unlink(path.c_str());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return failed(path);
  const absl::Cleanup close = [fd] { ::close(fd); };
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed(path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return ::fsync(fd) == 0 ? absl::OkStatus() : failed(path);
}

absl::Status sync_directory(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return failed(path);
  const absl::Cleanup close = [fd] { ::close(fd); };
  return ::fsync(fd) == 0 ? absl::OkStatus() : failed(path);
}

}  // namespace

absl::Status write_private(const std::filesystem::path& path, std::string_view bytes) {
  const std::filesystem::path beside = path.string() + ".new";
  if (absl::Status status = write_new(beside, bytes); !status.ok()) return status;
  if (::rename(beside.c_str(), path.c_str()) != 0) return failed(beside);
  return sync_directory(path.parent_path());
}

absl::StatusOr<std::string> read_small(const std::filesystem::path& path) {
  std::error_code failure;
  const std::uintmax_t size = std::filesystem::file_size(path, failure);
  if (failure) return absl::ErrnoToStatus(failure.value(), path.string());
  if (size > kMaxBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(path.string(), " has ", size, " bytes, must have ", kMaxBytes, " at most"));
  }
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  if (!text) return absl::UnavailableError(absl::StrCat("cannot read ", path.string()));
  return std::move(text).str();
}

absl::StatusOr<std::string> read_private(const std::filesystem::path& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return failed(path);
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        path.string(), " may be read or written by others than its owner; chmod 600 it"));
  }
  return read_small(path);
}

}  // namespace tessera::server
