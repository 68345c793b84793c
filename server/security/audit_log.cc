#include "server/security/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "proto/spec/redact.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

// Names come from clients: a line stays one that a pager can show.
constexpr size_t kMaxValueBytes = 512;

absl::Status failed(const std::filesystem::path& path, int error_number) {
  return error(absl::StatusCode::kUnavailable, "AUDIT_LOG",
               absl::StrCat("the audit log cannot be written: ",
                            absl::ErrnoToStatus(error_number, path.string()).message()));
}

std::filesystem::path numbered(const std::filesystem::path& path, int number) {
  return number == 0 ? path : std::filesystem::path(absl::StrCat(path.string(), ".", number));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::open(const std::filesystem::path& directory,
                                                         const Clock& clock) {
  std::unique_ptr<AuditLog> log(new AuditLog(directory / "audit.jsonl", clock));
  if (absl::Status status = log->open_file(); !status.ok()) return status;
  return log;
}

AuditLog::~AuditLog() {
  if (fd_ >= 0) ::close(fd_);
}

absl::Status AuditLog::open_file() {
  const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return failed(path_, errno);
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    const int why = errno;
    ::close(fd);
    return failed(path_, why);
  }
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
  size_ = static_cast<size_t>(info.st_size);
  return absl::OkStatus();
}

absl::Status AuditLog::rotate() {
  for (int number = kMaxOld; number > 0; --number) {
    const auto from = numbered(path_, number - 1);
    if (::rename(from.c_str(), numbered(path_, number).c_str()) != 0 && errno != ENOENT) {
      return failed(from, errno);
    }
  }
  return open_file();
}

absl::Status AuditLog::append(std::string_view line) {
  const ssize_t written = ::write(fd_, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    size_ += line.size();
    return absl::OkStatus();
  }
  // Part of a line would spoil the next one.
  const int why = written < 0 ? errno : ENOSPC;
  if (written > 0 && ::ftruncate(fd_, static_cast<off_t>(size_)) != 0) return failed(path_, errno);
  return failed(path_, why);
}

absl::Status AuditLog::write(const AuditFields& fields, bool durable) {
  nlohmann::ordered_json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", clock_.wall(), absl::UTCTimeZone());
  for (const auto& [name, value] : fields) {
    if (value.empty()) continue;
    line[std::string(name)] = spec::redact(value).substr(0, kMaxValueBytes);
  }
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::lock_guard lock(mutex_);
  if (size_ >= kMaxFileBytes) {
    if (absl::Status status = rotate(); !status.ok()) return status;
  }
  if (absl::Status status = append(text); !status.ok()) return status;
  if (durable && ::fdatasync(fd_) != 0) return failed(path_, errno);
  return absl::OkStatus();
}

}  // namespace tessera::server
