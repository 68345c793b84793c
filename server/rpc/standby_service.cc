#include "server/rpc/standby_service.h"

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/rpc/status.h"

namespace tessera::server {
namespace {

class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

void StandbyService::set_leader(const std::string& address) {
  const std::lock_guard lock(mutex_);
  leader_ = address;
  obstacle_.clear();
}

void StandbyService::set_obstacle(const std::string& obstacle) {
  const std::lock_guard lock(mutex_);
  obstacle_ = obstacle;
}

absl::Status StandbyService::status() const {
  const std::lock_guard lock(mutex_);
  std::string message = "standby; ";
  if (!obstacle_.empty()) {
    absl::StrAppend(&message, obstacle_);
  } else if (leader_.empty()) {
    absl::StrAppend(&message, "there is no leader yet");
  } else {
    absl::StrAppend(&message, "the leader is at ", leader_);
  }
  return error(absl::StatusCode::kUnavailable, "STANDBY", message);
}

grpc::ServerGenericBidiReactor* StandbyService::CreateReactor(grpc::GenericCallbackServerContext*) {
  return new Refusal(to_grpc(status()));
}

}  // namespace tessera::server
