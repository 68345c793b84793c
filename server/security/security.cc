#include "server/security/security.h"

#include <grpcpp/security/tls_credentials_options.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/security/private_file.h"
#include "server/security/x509.h"

namespace tessera::server {
namespace {

constexpr unsigned kReloadSeconds = 5;
constexpr absl::Duration kCheckInterval = absl::Hours(12);
// Calls that a client may make at once, as seconds of its rate.
constexpr double kBurstSeconds = 2;

bool is_unix(const std::string& address) { return absl::StartsWith(address, "unix:"); }

std::string host_of(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return host;
}

bool is_loopback_host(const std::string& host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

// A name or an address, as it may stand in a certificate.
bool is_host(const std::string& host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == ':';
  });
}

std::vector<std::string> certificate_hosts(const std::vector<std::string>& addresses,
                                           const std::vector<std::string>& names) {
  char hostname[256] = "";
  ::gethostname(hostname, sizeof(hostname) - 1);
  std::vector<std::string> hosts{"localhost", "127.0.0.1", "::1"};
  if (is_host(hostname)) hosts.emplace_back(hostname);
  for (const std::string& address : addresses) {
    const std::string host = host_of(address);
    if (!is_unix(address) && host != "0.0.0.0" && host != "::") hosts.push_back(host);
  }
  hosts.insert(hosts.end(), names.begin(), names.end());
  return hosts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Security>> Security::open(const std::filesystem::path& directory,
                                                         SecurityOptions options,
                                                         const std::vector<std::string>& addresses,
                                                         const Clock& clock,
                                                         Gate::FindJob find_job) {
  std::unique_ptr<Security> security(new Security(std::move(options), clock));
  if (absl::Status status = security->check_options(addresses); !status.ok()) return status;
  auto credentials = Credentials::open(directory / "access.db", clock);
  if (!credentials.ok()) return credentials.status();
  security->credentials_ = *std::move(credentials);
  auto log = AuditLog::open(directory, clock);
  if (!log.ok()) return log.status();
  security->log_ = *std::move(log);
  const double rate = security->options_.calls_per_second;
  security->limits_ =
      std::make_unique<RateLimits>(rate, std::max(1.0, kBurstSeconds * rate), clock);
  security->authenticator_ = std::make_unique<Authenticator>(
      *security->credentials_,
      AuthenticatorOptions{.trusts_loopback = security->options_.insecure_loopback,
                           .has_foreign_authority = !security->options_.client_ca.empty()});
  security->gate_ = std::make_unique<Gate>(*security->authenticator_, *security->limits_,
                                           *security->log_, std::move(find_job));
  const bool has_tls = !security->options_.insecure_loopback &&
                       !std::all_of(addresses.begin(), addresses.end(), is_unix);
  if (has_tls) {
    if (absl::Status status = security->open_tls(directory, addresses); !status.ok()) return status;
  }
  return security;
}

absl::Status Security::check_options(const std::vector<std::string>& addresses) const {
  if (options_.tls_cert.empty() != options_.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key must be given together");
  }
  for (const std::string& name : options_.tls_names) {
    if (is_host(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-name is \"", name, "\", must be a host name or an address"));
  }
  for (const std::string& address : addresses) {
    if (is_unix(address)) continue;
    const size_t colon = address.rfind(':');
    uint32_t port = 0;
    if (colon == std::string::npos || !is_host(host_of(address)) ||
        !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > UINT16_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat("--listen is \"", address, "\", must be unix:PATH or HOST:PORT"));
    }
    if (options_.insecure_loopback && !is_loopback_host(host_of(address))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--listen is \"", address, "\", must be a loopback address with --insecure-loopback"));
    }
  }
  return absl::OkStatus();
}

absl::Status Security::check_files() const {
  if (options_.tls_cert.empty()) return absl::OkStatus();
  const auto certificate = read_small(options_.tls_cert);
  if (!certificate.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-cert: ", certificate.status().message()));
  }
  const auto key = read_private(options_.tls_key);
  if (!key.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-key: ", key.status().message()));
  }
  if (!match(*certificate, *key)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tls-key ", options_.tls_key, " is not the key of --tls-cert ", options_.tls_cert));
  }
  return absl::OkStatus();
}

absl::Status Security::open_tls(const std::filesystem::path& directory,
                                const std::vector<std::string>& addresses) {
  if (absl::Status status = check_files(); !status.ok()) return status;
  std::string cert = options_.tls_cert;
  std::string key = options_.tls_key;
  std::string client_ca = options_.client_ca;
  if (!client_ca.empty()) {
    const auto text = read_small(client_ca);
    const auto facts = text.ok() ? read_certificate(*text) : text.status();
    if (!facts.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--client-ca ", client_ca, ": ", facts.status().message()));
    }
  }
  if (cert.empty() || client_ca.empty()) {
    auto authority = Authority::open(directory / "tls", clock_);
    if (!authority.ok()) return authority.status();
    if (client_ca.empty()) {
      client_ca = authority->certificate_path();
      enrolment_authority_ = *authority;
    }
    if (cert.empty()) {
      authority_ = *std::move(authority);
      hosts_ = certificate_hosts(addresses, options_.tls_names);
      absl::Status status = authority_->ensure_server_certificate(hosts_);
      if (!status.ok()) return status;
      cert = authority_->server_certificate_path();
      key = authority_->server_key_path();
    }
  }
  // What changes on disk is shown to the connections that come after.
  grpc::experimental::TlsServerCredentialsOptions tls(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(key, cert, client_ca,
                                                                           kReloadSeconds));
  tls.watch_root_certs();
  tls.watch_identity_key_cert_pairs();
  tls.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  tls_ = grpc::experimental::TlsServerCredentials(tls);
  tls_->SetAuthMetadataProcessor(authenticator_->guard_of_builtin_services());
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> Security::listener(const std::string& address) const {
  if (is_unix(address) || tls_ == nullptr) return grpc::InsecureServerCredentials();
  return tls_;
}

void Security::tick() {
  if (!authority_ || clock_.uptime() < next_check_) return;
  next_check_ = clock_.uptime() + kCheckInterval;
  const absl::Status status = authority_->ensure_server_certificate(hosts_);
  if (!status.ok()) spdlog::error("the certificate of tesserad: {}", std::string(status.message()));
}

}  // namespace tessera::server
