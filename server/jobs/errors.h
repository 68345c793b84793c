// Errors that RPCs answer: an absl::Status whose payload is the google.rpc detail to send along.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/spec/rules.h"

namespace tessera::server {

// Payload type URLs.
inline constexpr absl::string_view kErrorInfoType = "type.googleapis.com/google.rpc.ErrorInfo";
inline constexpr absl::string_view kBadRequestType = "type.googleapis.com/google.rpc.BadRequest";
inline constexpr absl::string_view kRetryInfoType = "type.googleapis.com/google.rpc.RetryInfo";

// `reason` is an UPPER_SNAKE_CASE word that programs can match, as in "JOB_NOT_FOUND".
absl::Status error(absl::StatusCode code, std::string_view reason, std::string_view message);

// INVALID_ARGUMENT. Its message names every violation. Requires: at least one violation.
absl::Status invalid_request(const std::vector<spec::Violation>& violations);

}  // namespace tessera::server
