// Every call passes here before its handler: who calls, how often, and whether the table of roles
// (policy.h) and the caller's projects allow it. What is refused, and every change that is allowed,
// is written to the audit log.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/security/audit_log.h"
#include "server/security/authenticator.h"
#include "server/security/open_calls.h"
#include "server/security/policy.h"
#include "server/security/rate_limits.h"

namespace tessera::server {

// Thread safe.
class Gate {
 public:
  struct JobPlace {
    std::string id;
    std::string project;
  };
  // Finds a job by its id or name; an error where there is not exactly one.
  using FindJob = std::function<absl::StatusOr<JobPlace>(const std::string& id_or_name)>;

  Gate(const Authenticator& authenticator, RateLimits& limits, AuditLog& log, OpenCalls& open_calls,
       FindJob find_job)
      : authenticator_(authenticator),
        limits_(limits),
        log_(log),
        open_calls_(open_calls),
        find_job_(std::move(find_job)) {}

  // The caller, where the call is allowed. For a caller that is limited to projects the name of a
  // job in `request` is replaced by the id that was looked at. UNAUTHENTICATED; PERMISSION_DENIED;
  // RESOURCE_EXHAUSTED with a RetryInfo: too many calls; UNAVAILABLE: it cannot be audited. All
  // have a reason.
  absl::StatusOr<Identity> admit(const grpc::CallbackServerContext& context,
                                 std::string_view method,
                                 google::protobuf::Message* request = nullptr) const;
  // The same of a request over HTTP that stands for the method.
  absl::StatusOr<Identity> admit(const WebCaller& caller, std::string_view method,
                                 google::protobuf::Message* request = nullptr) const;

  // Interrupts `call`, which was admitted, once its caller's credential does not hold any more.
  void hold(const Identity& caller, std::weak_ptr<OpenCall> call) const {
    open_calls_.add(caller.credential, std::move(call));
  }

  // The caller of a call that was admitted.
  absl::StatusOr<Identity> caller(const grpc::CallbackServerContext& context) const {
    return authenticator_.identify(context);
  }

  // Adds what came of a call to the audit log; returns `status`, or why it could not be written.
  absl::Status audit(const grpc::CallbackServerContext& context, const Identity& identity,
                     std::string_view method, const absl::Status& status,
                     AuditFields more = {}) const {
    return audit(context.peer(), identity, method, status, std::move(more));
  }

 private:
  absl::StatusOr<Identity> admit(const std::string& peer, absl::StatusOr<Identity> identity,
                                 std::string_view method, google::protobuf::Message* request) const;
  absl::Status audit(const std::string& peer, const Identity& identity, std::string_view method,
                     const absl::Status& status, AuditFields more) const;
  absl::Status check_rate(const std::string& client) const;
  absl::Status check_subject(const Identity& identity, const Rule& rule,
                             google::protobuf::Message& request) const;
  absl::Status check_job(const Identity& identity, const Rule& rule,
                         google::protobuf::Message& request) const;

  const Authenticator& authenticator_;
  RateLimits& limits_;
  AuditLog& log_;
  OpenCalls& open_calls_;
  const FindJob find_job_;
};

}  // namespace tessera::server
