// Messages and errors as the HTTP port answers them.
#pragma once

#include <string>

#include <google/protobuf/message.h>

#include "absl/status/status.h"

namespace tessera::server {

// protobuf's JSON mapping, on one line. Throws std::runtime_error for a message that has none.
std::string to_json(const google::protobuf::Message& message);

// {"error": {"code": "NOT_FOUND", "message": ..., "reason": "JOB_NOT_FOUND"}}
std::string error_json(const absl::Status& status);

// As google.rpc.Code says: 400 for INVALID_ARGUMENT, 404 for NOT_FOUND ...
int http_code(absl::StatusCode code);

}  // namespace tessera::server
