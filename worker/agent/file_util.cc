#include "worker/agent/file_util.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace tessera::agent {
namespace {

constexpr size_t kMaxMessageBytes = 64 << 20;

absl::Status write_all(int fd, absl::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno_status(absl::StrCat("write ", path.string()));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status sync_directory(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) {
    return errno_status(absl::StrCat("sync directory ", path.string()));
  }
  return absl::OkStatus();
}

}  // namespace

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

absl::Status errno_status(absl::string_view what) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", what));
}

absl::Status make_directories(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot create ", path.string()));
}

absl::StatusOr<std::string> read_file(const std::filesystem::path& path, size_t max_bytes) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(absl::StrCat("open ", path.string()));
  std::string bytes;
  char buffer[1 << 14];
  while (true) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_status(absl::StrCat("read ", path.string()));
    if (count == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(count));
    if (bytes.size() > max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path.string(), " is longer than ", max_bytes, " bytes"));
    }
  }
}

std::string read_tail(const std::filesystem::path& path, size_t max_bytes) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return "";
  const size_t size = static_cast<size_t>(info.st_size);
  std::string bytes(std::min(size, max_bytes), '\0');
  const ssize_t count =
      ::pread(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(size - bytes.size()));
  bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return bytes;
}

absl::Status write_atomically(const std::filesystem::path& path, absl::string_view bytes) {
  const std::filesystem::path beside = path.string() + ".new";
  {
    UniqueFd fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd.valid()) return errno_status(absl::StrCat("create ", beside.string()));
    if (absl::Status status = write_all(fd.get(), bytes, beside); !status.ok()) return status;
    if (::fsync(fd.get()) != 0) return errno_status(absl::StrCat("sync ", beside.string()));
  }
  if (::rename(beside.c_str(), path.c_str()) != 0) {
    return errno_status(absl::StrCat("rename ", beside.string()));
  }
  return sync_directory(path.parent_path());
}

absl::Status write_message(const std::filesystem::path& path,
                           const google::protobuf::MessageLite& message) {
  return write_atomically(path, message.SerializeAsString());
}

absl::Status read_message(const std::filesystem::path& path,
                          google::protobuf::MessageLite& message) {
  absl::StatusOr<std::string> bytes = read_file(path, kMaxMessageBytes);
  if (!bytes.ok()) return bytes.status();
  if (message.ParseFromString(*bytes)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path.string(), " is not a ", message.GetTypeName()));
}

}  // namespace tessera::agent
