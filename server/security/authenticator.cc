#include "server/security/authenticator.h"

#include <grpc/grpc_security_constants.h>

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/security/authority.h"

namespace tessera::server {
namespace {

constexpr char kAuthorization[] = "authorization";
constexpr std::string_view kBearer = "Bearer ";
constexpr std::string_view kBasic = "Basic ";

absl::Status unauthenticated(std::string_view reason, std::string_view message) {
  return error(absl::StatusCode::kUnauthenticated, reason, message);
}

std::string_view view(grpc::string_ref text) { return {text.data(), text.size()}; }

bool is_tls(const grpc::AuthContext& connection) {
  for (const grpc::string_ref& type :
       connection.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME)) {
    if (view(type) == "ssl" || view(type) == "tls") return true;
  }
  return false;
}

// NODE and, of our own certificates, CREDENTIAL of tessera://agent/NODE/CREDENTIAL.
struct AgentName {
  std::string node;
  std::string credential;
};

AgentName agent_name(const grpc::AuthContext& connection) {
  const std::string prefix = agent_uri("", "");
  for (const grpc::string_ref& uri : connection.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    std::string_view rest = view(uri);
    if (!rest.starts_with(prefix)) continue;
    rest.remove_prefix(prefix.size());
    const size_t slash = rest.find('/');
    AgentName name{std::string(rest.substr(0, slash)), ""};
    if (slash != rest.npos) name.credential = rest.substr(slash + 1);
    return name;
  }
  return {};
}

// As Bearer where it is Basic, which is how browsers ask their users.
std::string as_bearer(std::string_view header) {
  std::string pair;
  if (!header.starts_with(kBasic)) return std::string(header);
  header.remove_prefix(kBasic.size());
  if (!absl::Base64Unescape({header.data(), header.size()}, &pair)) return "";
  const size_t colon = pair.find(':');
  return absl::StrCat(std::string(kBearer), colon == pair.npos ? "" : pair.substr(colon + 1));
}

Role role_of(v1::Credential::Role role) {
  switch (role) {
    case v1::Credential::OPERATOR:
      return Role::kOperator;
    case v1::Credential::SUBMITTER:
      return Role::kSubmitter;
    case v1::Credential::AGENT:
      return Role::kEnroller;
    default:
      return Role::kViewer;
  }
}

}  // namespace

class BuiltinServicesGuard final : public grpc::AuthMetadataProcessor {
 public:
  explicit BuiltinServicesGuard(const Authenticator& authenticator)
      : authenticator_(authenticator) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* connection,
                       OutputMetadata*, OutputMetadata*) override {
    const auto path = metadata.find(":path");
    // The gate answers for ours, with details that cannot be sent from here.
    if (path != metadata.end() && view(path->second).starts_with("/tessera.")) {
      return grpc::Status::OK;
    }
    std::vector<std::string_view> authorization;
    const auto [begin, end] = metadata.equal_range(kAuthorization);
    for (auto it = begin; it != end; ++it) authorization.push_back(view(it->second));
    const auto identity = authenticator_.identify(*connection, false, authorization);
    if (identity.ok()) return grpc::Status::OK;
    return {grpc::StatusCode::UNAUTHENTICATED, std::string(identity.status().message())};
  }

 private:
  const Authenticator& authenticator_;
};

std::shared_ptr<grpc::AuthMetadataProcessor> Authenticator::guard_of_builtin_services() const {
  return std::make_shared<BuiltinServicesGuard>(*this);
}

absl::StatusOr<Identity> Authenticator::identify(const grpc::CallbackServerContext& context) const {
  std::vector<std::string_view> authorization;
  const auto [begin, end] = context.client_metadata().equal_range(kAuthorization);
  for (auto it = begin; it != end; ++it) authorization.push_back(view(it->second));
  const auto connection = context.auth_context();
  // The peer's address is the kernel's word, not the client's.
  const bool is_unix = absl::StartsWith(context.peer(), "unix:");
  const bool is_local = is_unix || (options_.trusts_loopback && !is_tls(*connection));
  return identify(*connection, is_local, authorization);
}

absl::StatusOr<Identity> Authenticator::identify(
    const grpc::AuthContext& connection, bool is_local,
    const std::vector<std::string_view>& authorization) const {
  if (authorization.size() > 1) {
    return unauthenticated("TOKEN_INVALID", "the call has several authorization headers");
  }
  if (!authorization.empty()) return by_token(authorization.front());
  if (is_local) return Identity{.role = Role::kLocal, .name = "local"};
  if (!is_tls(connection) || !connection.IsPeerAuthenticated()) {
    return unauthenticated("NO_CREDENTIALS",
                           "the call has neither a token nor a certificate of an agent");
  }
  return by_certificate(connection);
}

absl::StatusOr<Identity> Authenticator::identify(const WebCaller& caller) const {
  if (!caller.authorization.empty()) return by_token(as_bearer(caller.authorization));
  if (caller.user) return *caller.user;
  return unauthenticated(
      "NO_CREDENTIALS",
      "the request has no token (Authorization: Bearer, or Basic with the token "
      "as password), and does not come from a program of the coordinator's user");
}

absl::StatusOr<Identity> Authenticator::by_token(std::string_view header) const {
  if (!header.starts_with(kBearer)) {
    return unauthenticated("TOKEN_INVALID", "the authorization header is not Bearer TOKEN");
  }
  const auto credential = credentials_.verify_token(header.substr(kBearer.size()));
  if (!credential.ok()) return credential.status();
  return Identity{.role = role_of(credential->role()),
                  .name = absl::StrCat("token ", credential->id()),
                  .credential = credential->id(),
                  .projects = {credential->projects().begin(), credential->projects().end()},
                  .node = credential->node()};
}

absl::StatusOr<Identity> Authenticator::by_certificate(const grpc::AuthContext& connection) const {
  const AgentName name = agent_name(connection);
  if (name.node.empty()) {
    return unauthenticated("NOT_AN_AGENT", "the certificate names no agent (tessera://agent/NODE)");
  }
  if (!options_.has_foreign_authority) {
    const auto credential = credentials_.verify_certificate(name.credential);
    if (!credential.ok()) return credential.status();
  }
  return Identity{.role = Role::kAgent,
                  .name = absl::StrCat("agent ", name.node),
                  .credential = options_.has_foreign_authority ? "" : name.credential,
                  .projects = {},
                  .node = name.node};
}

}  // namespace tessera::server
