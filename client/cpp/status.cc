#include "client/cpp/status.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace tessera {
namespace {

constexpr char kTypePrefix[] = "type.googleapis.com/";

template <class Detail>
std::optional<Detail> find_detail(const absl::Status& status) {
  const auto payload =
      status.GetPayload(absl::StrCat(kTypePrefix, Detail::descriptor()->full_name()));
  Detail detail;
  if (!payload || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

}  // namespace

absl::Status to_status(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status out(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (details.ParseFromString(status.error_details())) {
    for (const auto& detail : details.details()) {
      out.SetPayload(detail.type_url(), absl::Cord(detail.value()));
    }
  }
  return out;
}

std::vector<std::string> describe_error(const absl::Status& status) {
  std::vector<std::string> lines;
  if (const auto bad_request = find_detail<google::rpc::BadRequest>(status)) {
    for (const auto& violation : bad_request->field_violations()) {
      const bool named = absl::StrContains(violation.description(), violation.field());
      lines.push_back(named ? violation.description()
                            : absl::StrCat(violation.field(), ": ", violation.description()));
    }
  }
  if (lines.empty()) {
    lines.push_back(status.message().empty() ? absl::StatusCodeToString(status.code())
                                             : std::string(status.message()));
  }
  return lines;
}

std::string error_reason(const absl::Status& status) {
  const auto info = find_detail<google::rpc::ErrorInfo>(status);
  return info ? info->reason() : "";
}

std::optional<std::chrono::milliseconds> retry_delay(const absl::Status& status) {
  const auto info = find_detail<google::rpc::RetryInfo>(status);
  if (!info) return std::nullopt;
  const std::chrono::nanoseconds delay = std::chrono::seconds(info->retry_delay().seconds()) +
                                         std::chrono::nanoseconds(info->retry_delay().nanos());
  // Rounded up: at 0 it would be made again at once.
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(delay),
                  std::chrono::milliseconds(1));
}

bool is_transient(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) ||
         absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

}  // namespace tessera
