// What listeners on HOST:PORT show, and whose certificates they take: files of the user's, or of an
// authority of our own in the state directory (authority.h).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/security/authority.h"

namespace tessera::server {

struct TlsOptions {
  // In PEM, all of them or the first two. Empty: our own authority's.
  std::string tls_cert;
  std::string tls_key;
  std::string client_ca;
  // Names and addresses in the certificate, besides those of this machine and of the listeners.
  std::vector<std::string> tls_names;
  // Loopback listeners serve without TLS, whoever connects.
  bool insecure_loopback = false;
};

class Tls {
 public:
  // `addresses` are what will be listened on. INVALID_ARGUMENT names the flag that is wrong. Where
  // other coordinators have an authority already, `known_authority` is its certificate in PEM;
  // FAILED_PRECONDITION: this machine has another one, or none.
  static absl::StatusOr<std::unique_ptr<Tls>> open(const std::filesystem::path& directory,
                                                   TlsOptions options,
                                                   const std::vector<std::string>& addresses,
                                                   const Clock& clock,
                                                   const std::string& known_authority = "");

  // For a listener: unix:PATH is as safe as its directory, HOST:PORT is TLS unless
  // insecure_loopback. `processor` sees the headers of calls over TLS; it may be nullptr.
  std::shared_ptr<grpc::ServerCredentials> listener(
      const std::string& address, std::shared_ptr<grpc::AuthMetadataProcessor> processor) const;

  // Renews what ends soon. Call it often, from one thread.
  void tick();

  const TlsOptions& options() const { return options_; }
  // Of the authority of our own, in PEM. Empty: there is none.
  std::string authority_certificate() const;
  // Absent: agents do not get certificates here.
  const std::optional<Authority>& enrolment_authority() const { return enrolment_authority_; }

 private:
  Tls(TlsOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}
  absl::Status check_options(const std::vector<std::string>& addresses) const;
  absl::Status check_files() const;
  absl::StatusOr<Authority> open_authority(const std::filesystem::path& directory,
                                           const std::string& known_authority) const;
  absl::Status open_files(const std::filesystem::path& directory,
                          const std::vector<std::string>& addresses,
                          const std::string& known_authority);

  const TlsOptions options_;
  const Clock& clock_;
  // Paths of what is shown, and of who is believed. Empty: nothing is served with TLS.
  std::string cert_;
  std::string key_;
  std::string client_ca_;
  // Absent: all files are the user's, or nothing is served with TLS.
  std::optional<Authority> authority_;
  std::optional<Authority> enrolment_authority_;
  std::vector<std::string> hosts_;
  absl::Duration next_check_;
};

}  // namespace tessera::server
