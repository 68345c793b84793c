#include "server/jobs/database.h"

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"

namespace tessera::server {

absl::Status to_status(const DatabaseError& failure) {
  if (dynamic_cast<const DiskFull*>(&failure) != nullptr) {
    return error(absl::StatusCode::kResourceExhausted, "DISK_FULL", failure.what());
  }
  if (dynamic_cast<const DiskFailed*>(&failure) != nullptr) {
    return error(absl::StatusCode::kUnavailable, "DISK_FAILED", failure.what());
  }
  const bool is_lost = dynamic_cast<const DatabaseLost*>(&failure) != nullptr;
  return error(is_lost ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal, "STORE",
               failure.what());
}

absl::Status check_version(const std::string& where, int64_t version, const Schema& schema) {
  const auto known = static_cast<int64_t>(schema.steps.size());
  if (version >= 0 && version <= known) return absl::OkStatus();
  return error(absl::StatusCode::kFailedPrecondition, "SCHEMA_VERSION",
               absl::StrCat(where, " has schema version ", version,
                            ", this tesserad knows version ", known));
}

}  // namespace tessera::server
