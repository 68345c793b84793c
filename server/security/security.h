// All of tesserad's security, put together: what is kept in the state directory, who may call, and
// what listeners show.
//
//   access.db       tokens (hashed) and certificates given out
//   audit.jsonl     see audit_log.h
//   tls/            see authority.h; made once there is a listener with TLS
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/security/server_credentials.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/security/audit_log.h"
#include "server/security/authenticator.h"
#include "server/security/authority.h"
#include "server/security/credentials.h"
#include "server/security/gate.h"
#include "server/security/rate_limits.h"

namespace tessera::server {

struct SecurityOptions {
  // In PEM, all of them or the first two. Empty: our own authority's.
  std::string tls_cert;
  std::string tls_key;
  std::string client_ca;
  // Names and addresses in the certificate, besides those of this machine and of the listeners.
  std::vector<std::string> tls_names;
  // Loopback listeners serve without TLS, whoever connects.
  bool insecure_loopback = false;
  absl::Duration certificate_lifetime = absl::Hours(24 * 30);
  // Of one client, on average.
  double calls_per_second = 100;
};

class Security {
 public:
  // `addresses` are what will be listened on. INVALID_ARGUMENT names the flag that is wrong.
  static absl::StatusOr<std::unique_ptr<Security>> open(const std::filesystem::path& directory,
                                                        SecurityOptions options,
                                                        const std::vector<std::string>& addresses,
                                                        const Clock& clock, Gate::FindJob find_job);

  // For a listener: unix:PATH is as safe as its directory, HOST:PORT is TLS unless
  // insecure_loopback.
  std::shared_ptr<grpc::ServerCredentials> listener(const std::string& address) const;

  // Renews what ends soon. Call it often.
  void tick();

  const Gate& gate() const { return *gate_; }
  Credentials& credentials() { return *credentials_; }
  // Absent: agents do not get certificates here.
  const std::optional<Authority>& enrolment_authority() const { return enrolment_authority_; }
  const SecurityOptions& options() const { return options_; }

 private:
  Security(SecurityOptions options, const Clock& clock)
      : options_(std::move(options)), clock_(clock) {}
  absl::Status check_options(const std::vector<std::string>& addresses) const;
  absl::Status open_tls(const std::filesystem::path& directory,
                        const std::vector<std::string>& addresses);
  absl::Status check_files() const;

  const SecurityOptions options_;
  const Clock& clock_;
  std::unique_ptr<Credentials> credentials_;
  std::unique_ptr<AuditLog> log_;
  std::unique_ptr<RateLimits> limits_;
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<Gate> gate_;
  // Absent: all files are the user's, or nothing is served with TLS.
  std::optional<Authority> authority_;
  std::optional<Authority> enrolment_authority_;
  std::vector<std::string> hosts_;
  std::shared_ptr<grpc::ServerCredentials> tls_;
  absl::Duration next_check_;
};

}  // namespace tessera::server
