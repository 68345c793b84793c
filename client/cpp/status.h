// Statuses of calls: gRPC's and google.rpc's details as absl::Status, and as lines for people.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace tessera {

// The status with its google.rpc details as payloads, by type URL.
absl::Status to_status(const grpc::Status& status);

// What to tell the user: each violation of a BadRequest, else the message. At least one line.
std::vector<std::string> describe_error(const absl::Status& status);

// The reason of the status's ErrorInfo, as in "JOB_NOT_FOUND". Empty: none.
std::string error_reason(const absl::Status& status);

// When the service says that the call may be made again (RetryInfo); nullopt: it does not say.
std::optional<std::chrono::milliseconds> retry_delay(const absl::Status& status);

// Whether the same call may succeed later: the service was not there, or could not take the call.
bool is_transient(const absl::Status& status);

}  // namespace tessera
