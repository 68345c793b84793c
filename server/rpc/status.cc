#include "server/rpc/status.h"

#include <string>

#include <grpcpp/support/error_details.h>

#include "absl/strings/cord.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "proto/spec/redact.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

// Values of fields stand in the descriptions of broken rules.
std::string without_secrets(absl::string_view type, const absl::Cord& payload) {
  google::rpc::BadRequest request;
  if (type != kBadRequestType || !request.ParseFromString(std::string(payload))) {
    return std::string(payload);
  }
  for (auto& violation : *request.mutable_field_violations()) {
    violation.set_description(spec::redact(violation.description()));
  }
  return request.SerializeAsString();
}

}  // namespace

grpc::Status to_grpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(spec::redact({status.message().data(), status.message().size()}));
  const auto add = [&](absl::string_view type, const absl::Cord& payload) {
    auto* detail = details.add_details();
    detail->set_type_url(std::string(type));
    detail->set_value(without_secrets(type, payload));
  };
  status.ForEachPayload(add);
  if (details.details().empty()) {
    const std::string reason = absl::StatusCodeToString(status.code());
    error(status.code(), reason, "").ForEachPayload(add);
  }
  grpc::Status result;
  grpc::SetErrorDetails(details, &result);
  return result;
}

}  // namespace tessera::server
