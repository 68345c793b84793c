#include "server/rpc/status.h"

#include <string>

#include <grpcpp/support/error_details.h>

#include "absl/strings/cord.h"
#include "google/rpc/status.pb.h"
#include "server/jobs/errors.h"

namespace tessera::server {

grpc::Status to_grpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(status.message()));
  const auto add = [&](absl::string_view type, const absl::Cord& payload) {
    auto* detail = details.add_details();
    detail->set_type_url(std::string(type));
    detail->set_value(std::string(payload));
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
