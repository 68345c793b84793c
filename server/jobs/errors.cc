#include "server/jobs/errors.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"

namespace tessera::server {
namespace {

// As one line that can be read without its detail.
std::string sentence(const spec::Violation& violation) {
  if (violation.field.empty() || absl::StrContains(violation.message, violation.field)) {
    return violation.message;
  }
  return absl::StrCat(violation.field, ": ", violation.message);
}

}  // namespace

absl::Status error(absl::StatusCode code, std::string_view reason, std::string_view message) {
  google::rpc::ErrorInfo info;
  info.set_domain("tessera");
  info.set_reason(std::string(reason));
  absl::Status status(code, {message.data(), message.size()});
  status.SetPayload(kErrorInfoType, absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Status invalid_request(const std::vector<spec::Violation>& violations) {
  google::rpc::BadRequest request;
  std::string message;
  for (const spec::Violation& violation : violations) {
    auto* detail = request.add_field_violations();
    detail->set_field(violation.field);
    detail->set_description(violation.message);
    absl::StrAppend(&message, message.empty() ? "" : "\n", sentence(violation));
  }
  absl::Status status(absl::StatusCode::kInvalidArgument, message);
  status.SetPayload(kBadRequestType, absl::Cord(request.SerializeAsString()));
  return status;
}

}  // namespace tessera::server
