#include "server/web/json.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "absl/strings/cord.h"
#include "google/rpc/error_details.pb.h"
#include "server/jobs/errors.h"

namespace tessera::server {

std::string to_json(const google::protobuf::Message& message) {
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json);
  if (!status.ok()) throw std::runtime_error("a message has no JSON form: " + status.ToString());
  return json;
}

std::string error_json(const absl::Status& status) {
  nlohmann::json error{{"code", absl::StatusCodeToString(status.code())},
                       {"message", std::string(status.message())}};
  google::rpc::ErrorInfo info;
  const auto payload = status.GetPayload(kErrorInfoType);
  if (payload && info.ParseFromString(std::string(*payload))) error["reason"] = info.reason();
  // A message may quote bytes that are no UTF-8.
  return nlohmann::json{{"error", error}}.dump(-1, ' ', false,
                                               nlohmann::json::error_handler_t::replace);
}

int http_code(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

}  // namespace tessera::server
