#include "server/security/tls.h"

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

absl::StatusOr<std::unique_ptr<Tls>> Tls::open(const std::filesystem::path& directory,
                                               TlsOptions options,
                                               const std::vector<std::string>& addresses,
                                               const Clock& clock,
                                               const std::string& known_authority) {
  std::unique_ptr<Tls> tls(new Tls(std::move(options), clock));
  if (absl::Status status = tls->check_options(addresses); !status.ok()) return status;
  const bool has_tls =
      !tls->options_.insecure_loopback && !std::all_of(addresses.begin(), addresses.end(), is_unix);
  if (has_tls) {
    absl::Status status = tls->open_files(directory, addresses, known_authority);
    if (!status.ok()) return status;
  }
  return tls;
}

absl::Status Tls::check_options(const std::vector<std::string>& addresses) const {
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

absl::Status Tls::check_files() const {
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

absl::StatusOr<Authority> Tls::open_authority(const std::filesystem::path& directory,
                                              const std::string& known_authority) const {
  if (known_authority.empty()) return Authority::open(directory, clock_);
  const auto present = read_small(directory / "ca.pem");
  if (present.ok() && *present == known_authority) return Authority::open(directory, clock_);
  return absl::FailedPreconditionError(absl::StrCat(
      directory.string(), " has ", present.ok() ? "another authority than" : "not the authority of",
      " the other coordinators of this --store: empty the folder, and copy ca.pem and ca-key.pem "
      "from one of their state directories (tls/) into it, readable by this user alone"));
}

absl::Status Tls::open_files(const std::filesystem::path& directory,
                             const std::vector<std::string>& addresses,
                             const std::string& known_authority) {
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
    auto authority = open_authority(directory / "tls", known_authority);
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
  cert_ = std::move(cert);
  key_ = std::move(key);
  client_ca_ = std::move(client_ca);
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> Tls::listener(
    const std::string& address, std::shared_ptr<grpc::AuthMetadataProcessor> processor) const {
  if (is_unix(address) || cert_.empty()) return grpc::InsecureServerCredentials();
  // What changes on disk is shown to the connections that come after.
  grpc::experimental::TlsServerCredentialsOptions tls(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(key_, cert_, client_ca_,
                                                                           kReloadSeconds));
  tls.watch_root_certs();
  tls.watch_identity_key_cert_pairs();
  tls.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  auto credentials = grpc::experimental::TlsServerCredentials(tls);
  if (processor != nullptr) credentials->SetAuthMetadataProcessor(processor);
  return credentials;
}

std::string Tls::authority_certificate() const {
  const auto& authority = enrolment_authority_ ? enrolment_authority_ : authority_;
  return authority ? authority->certificate() : "";
}

void Tls::tick() {
  if (!authority_ || clock_.uptime() < next_check_) return;
  next_check_ = clock_.uptime() + kCheckInterval;
  const absl::Status status = authority_->ensure_server_certificate(hosts_);
  if (!status.ok()) spdlog::error("the certificate of tesserad: {}", std::string(status.message()));
}

}  // namespace tessera::server
