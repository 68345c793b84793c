// Jobs page by page, as RPC and HTTP give them.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/jobs/store.h"

namespace tessera::server {

// Entries of a page, unless more or less is asked for, and at most.
inline constexpr int kDefaultPageSize = 50;
inline constexpr int kMaxPageSize = 1000;

// Newest first, those of projects that `sees` is true of. INVALID_ARGUMENT: a field breaks a rule.
// Throws DatabaseError.
absl::Status list_jobs(Reader& reader, const std::function<bool(const std::string& project)>& sees,
                       const v1::ListJobsRequest& request, v1::ListJobsResponse& response);

}  // namespace tessera::server
