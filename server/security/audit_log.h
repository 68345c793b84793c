// Who asked for what, and whether it was allowed: one line of JSON each, only ever appended.
//
//   {"time":"2026-01-01T00:00:00.000Z","who":"token 3f..","peer":"ipv4:10.0.0.1:4711",
//    "method":"tessera.v1.Coordinator/CancelJob","job":"demo-1","decision":"allowed"}
//
// A line is one write(2) with O_APPEND: it is there when the process dies. Lines of Access are
// fsynced, too, before the call goes on; others survive a loss of power once the kernel has written
// them. A file that has kMaxFileBytes is renamed to audit.jsonl.1, and so on to .kMaxOld; the
// oldest goes.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/clock.h"

namespace tessera::server {

// What a line holds, in order; empty values are left out. Values are redacted.
using AuditFields = std::vector<std::pair<std::string_view, std::string>>;

// Thread safe.
class AuditLog {
 public:
  static constexpr size_t kMaxFileBytes = 16 << 20;
  static constexpr int kMaxOld = 7;

  // Appends to DIRECTORY/audit.jsonl, which is made with mode 0600.
  static absl::StatusOr<std::unique_ptr<AuditLog>> open(const std::filesystem::path& directory,
                                                        const Clock& clock);
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  // UNAVAILABLE: it could not be written; what it is about must not be done then.
  absl::Status write(const AuditFields& fields, bool durable);

 private:
  AuditLog(std::filesystem::path path, const Clock& clock)
      : path_(std::move(path)), clock_(clock) {}
  absl::Status open_file();
  absl::Status rotate();
  absl::Status append(std::string_view line);

  const std::filesystem::path path_;
  const Clock& clock_;
  std::mutex mutex_;
  // Guarded by mutex_.
  int fd_ = -1;
  size_t size_ = 0;
};

}  // namespace tessera::server
