// All of tesserad's security, put together: who may call, and what listeners show. Tokens (hashed)
// and certificates given out are in the coordinator's database, the rest in its state directory:
//
//   audit.jsonl     see audit_log.h
//   tls/            see tls.h; made once there is a listener with TLS
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/security/audit_log.h"
#include "server/security/authenticator.h"
#include "server/security/credentials.h"
#include "server/security/gate.h"
#include "server/security/rate_limits.h"
#include "server/security/tls.h"

namespace tessera::server {

struct SecurityOptions {
  absl::Duration certificate_lifetime = absl::Hours(24 * 30);
  // Of one client, on average.
  double calls_per_second = 100;
};

class Security {
 public:
  // `directory` is that of the audit log. `storage` and `tls` outlive it.
  static absl::StatusOr<std::unique_ptr<Security>> open(const std::filesystem::path& directory,
                                                        SecurityOptions options, Storage& storage,
                                                        Tls& tls, const Clock& clock,
                                                        Gate::FindJob find_job);

  std::shared_ptr<grpc::ServerCredentials> listener(const std::string& address) const {
    return tls_.listener(address, authenticator_->guard_of_builtin_services());
  }

  // Renews what ends soon, and ends open calls whose credentials did. Call it often.
  void tick();

  const Gate& gate() const { return *gate_; }
  Credentials& credentials() { return *credentials_; }
  OpenCalls& open_calls() { return *open_calls_; }
  // Absent: agents do not get certificates here.
  const std::optional<Authority>& enrolment_authority() const { return tls_.enrolment_authority(); }
  const SecurityOptions& options() const { return options_; }
  const TlsOptions& tls_options() const { return tls_.options(); }

 private:
  Security(SecurityOptions options, Tls& tls, const Clock& clock)
      : options_(options), tls_(tls), clock_(clock) {}

  const SecurityOptions options_;
  Tls& tls_;
  const Clock& clock_;
  std::unique_ptr<Credentials> credentials_;
  std::unique_ptr<OpenCalls> open_calls_;
  std::unique_ptr<AuditLog> log_;
  std::unique_ptr<RateLimits> limits_;
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<Gate> gate_;
  absl::Duration next_check_of_calls_;
};

}  // namespace tessera::server
