#include "server/security/access_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/rpc/status.h"
#include "server/security/x509.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxRequestBytes = 16 << 10;

}  // namespace

grpc::ServerUnaryReactor* AccessService::answer(
    grpc::CallbackServerContext* context, const char* method,
    const std::function<absl::StatusOr<v1::Credential>(const Identity&)>& act) const {
  const absl::Duration begin = clock_.uptime();
  const std::string name = absl::StrCat(v1::Access::service_full_name(), "/", method);
  const absl::StatusOr<Identity> caller = security_.gate().admit(*context, name);
  absl::Status status = caller.status();
  if (status.ok()) {
    const absl::StatusOr<v1::Credential> about = act(*caller);
    status = about.status();
    AuditFields fields;
    if (about.ok()) {
      fields = {{"credential", about->id()}, {"node", about->node()}};
      if (about->role() != v1::Credential::ROLE_UNSPECIFIED) {
        fields.emplace_back("for", v1::Credential::Role_Name(about->role()));
      }
    }
    if (!about.ok() || !about->id().empty()) {
      status = security_.gate().audit(*context, *caller, name, status, std::move(fields));
    }
  }
  const grpc::Status translated = to_grpc(status);
  metrics_.record(method, translated.error_code(), clock_.uptime() - begin);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(translated);
  return reactor;
}

grpc::ServerUnaryReactor* AccessService::CreateToken(grpc::CallbackServerContext* context,
                                                     const v1::CreateTokenRequest* request,
                                                     v1::CreateTokenResponse* response) {
  return answer(context, "CreateToken", [&](const Identity& caller) {
    auto created = security_.credentials().create(*request, caller.name);
    if (!created.ok()) return absl::StatusOr<v1::Credential>(created.status());
    *response = *std::move(created);
    return absl::StatusOr<v1::Credential>(response->credential());
  });
}

grpc::ServerUnaryReactor* AccessService::ListCredentials(grpc::CallbackServerContext* context,
                                                         const v1::ListCredentialsRequest*,
                                                         v1::ListCredentialsResponse* response) {
  return answer(context, "ListCredentials", [&](const Identity&) {
    for (v1::Credential& credential : security_.credentials().list()) {
      *response->add_credentials() = std::move(credential);
    }
    return absl::StatusOr<v1::Credential>(v1::Credential());
  });
}

grpc::ServerUnaryReactor* AccessService::RevokeCredential(
    grpc::CallbackServerContext* context, const v1::RevokeCredentialRequest* request,
    v1::RevokeCredentialResponse* response) {
  return answer(context, "RevokeCredential", [&](const Identity&) {
    auto revoked = security_.credentials().revoke(request->id());
    if (revoked.ok()) {
      security_.open_calls().check();
      *response->mutable_credential() = *revoked;
    }
    return revoked;
  });
}

absl::StatusOr<std::string> AccessService::read_request(
    const std::string& certificate_request) const {
  if (!security_.enrolment_authority()) {
    return error(
        absl::StatusCode::kFailedPrecondition, "NO_AUTHORITY",
        "this coordinator gives out no certificates: it has no TLS listener, or takes those "
        "of --client-ca");
  }
  if (certificate_request.size() > kMaxRequestBytes) {
    return invalid_request({{"certificate_request",
                             absl::StrCat("certificate_request has ", certificate_request.size(),
                                          " bytes, must have ", kMaxRequestBytes, " at most")}});
  }
  auto public_key = public_key_of_request(certificate_request);
  if (public_key.ok()) return public_key;
  return invalid_request(
      {{"certificate_request",
        absl::StrCat("certificate_request: ", std::string(public_key.status().message()))}});
}

absl::StatusOr<std::string> AccessService::certify(const v1::Credential& certificate,
                                                   const std::string& public_key) const {
  return security_.enrolment_authority()->certify_agent(
      public_key, certificate.node(), certificate.id(),
      absl::FromUnixSeconds(certificate.expire_time().seconds()));
}

grpc::ServerUnaryReactor* AccessService::Enrol(grpc::CallbackServerContext* context,
                                               const v1::EnrolRequest* request,
                                               v1::EnrolResponse* response) {
  return answer(context, "Enrol", [&](const Identity& caller) -> absl::StatusOr<v1::Credential> {
    const auto public_key = read_request(request->certificate_request());
    if (!public_key.ok()) return public_key.status();
    auto credential = security_.credentials().enrol(caller.credential, request->node(), *public_key,
                                                    security_.options().certificate_lifetime);
    if (!credential.ok()) return credential.status();
    auto certificate = certify(*credential, *public_key);
    if (!certificate.ok()) return certificate.status();
    response->set_certificate(*std::move(certificate));
    return credential;
  });
}

grpc::ServerUnaryReactor* AccessService::RenewCertificate(
    grpc::CallbackServerContext* context, const v1::RenewCertificateRequest* request,
    v1::RenewCertificateResponse* response) {
  return answer(context, "RenewCertificate",
                [&](const Identity& caller) -> absl::StatusOr<v1::Credential> {
                  const auto public_key = read_request(request->certificate_request());
                  if (!public_key.ok()) return public_key.status();
                  auto credential = security_.credentials().renew(
                      caller.credential, security_.options().certificate_lifetime);
                  if (!credential.ok()) return credential.status();
                  auto certificate = certify(*credential, *public_key);
                  if (!certificate.ok()) return certificate.status();
                  response->set_certificate(*std::move(certificate));
                  return credential;
                });
}

}  // namespace tessera::server
