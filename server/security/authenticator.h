// Tells who calls: from the way a connection came, its certificate, and the call's token.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include "absl/status/statusor.h"
#include "server/security/credentials.h"
#include "server/security/identity.h"

namespace tessera::server {

struct AuthenticatorOptions {
  // Connections without TLS from this machine's loopback are local, as those of a Unix socket are.
  bool trusts_loopback = false;
  // Certificates come from --client-ca, which alone answers for them.
  bool has_foreign_authority = false;
};

// A request over HTTP.
struct WebCaller {
  // As in "http:127.0.0.1:4711".
  std::string peer;
  // That header: Bearer TOKEN, or Basic, where the password is the token. Empty: there is none.
  std::string authorization;
  // Who it is without one, where the kernel's word on the connection tells.
  std::optional<Identity> user;
};

// Thread safe.
class Authenticator {
 public:
  Authenticator(const Credentials& credentials, AuthenticatorOptions options)
      : credentials_(credentials), options_(options) {}

  // A token decides where there is one, else the certificate, else the Unix socket.
  // UNAUTHENTICATED: there is nothing, or what there is does not hold.
  absl::StatusOr<Identity> identify(const grpc::CallbackServerContext& context) const;
  absl::StatusOr<Identity> identify(const WebCaller& caller) const;

  // For the services that gRPC brings (health, reflection), which no gate of ours guards: on TLS
  // they answer to whom some credential identifies. Lives no longer than this object.
  std::shared_ptr<grpc::AuthMetadataProcessor> guard_of_builtin_services() const;

 private:
  friend class BuiltinServicesGuard;

  // `authorization`: all values of that header.
  absl::StatusOr<Identity> identify(const grpc::AuthContext& connection, bool is_local,
                                    const std::vector<std::string_view>& authorization) const;
  absl::StatusOr<Identity> by_token(std::string_view header) const;
  absl::StatusOr<Identity> by_certificate(const grpc::AuthContext& connection) const;

  const Credentials& credentials_;
  const AuthenticatorOptions options_;
};

}  // namespace tessera::server
