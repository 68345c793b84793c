#include "server/security/security.h"

#include <algorithm>
#include <utility>

namespace tessera::server {
namespace {

constexpr absl::Duration kCheckOfCallsInterval = absl::Seconds(1);
// Calls that a client may make at once, as seconds of its rate.
constexpr double kBurstSeconds = 2;

}  // namespace

absl::StatusOr<std::unique_ptr<Security>> Security::open(const std::filesystem::path& directory,
                                                         SecurityOptions options, Storage& storage,
                                                         Tls& tls, const Clock& clock,
                                                         Gate::FindJob find_job) {
  std::unique_ptr<Security> security(new Security(options, tls, clock));
  auto credentials = Credentials::open(storage, clock);
  if (!credentials.ok()) return credentials.status();
  security->credentials_ = *std::move(credentials);
  security->open_calls_ = std::make_unique<OpenCalls>(*security->credentials_);
  auto log = AuditLog::open(directory, clock);
  if (!log.ok()) return log.status();
  security->log_ = *std::move(log);
  const double rate = options.calls_per_second;
  security->limits_ =
      std::make_unique<RateLimits>(rate, std::max(1.0, kBurstSeconds * rate), clock);
  security->authenticator_ = std::make_unique<Authenticator>(
      *security->credentials_,
      AuthenticatorOptions{.trusts_loopback = tls.options().insecure_loopback,
                           .has_foreign_authority = !tls.options().client_ca.empty()});
  security->gate_ =
      std::make_unique<Gate>(*security->authenticator_, *security->limits_, *security->log_,
                             *security->open_calls_, std::move(find_job));
  return security;
}

void Security::tick() {
  tls_.tick();
  if (clock_.uptime() < next_check_of_calls_) return;
  next_check_of_calls_ = clock_.uptime() + kCheckOfCallsInterval;
  open_calls_->check();
}

}  // namespace tessera::server
