// The Access service: tokens, and agents that join. See proto/tessera/v1/access.proto.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "server/security/security.h"
#include "server/telemetry/rpc_metrics.h"
#include "tessera/v1/access.grpc.pb.h"

namespace tessera::server {

class AccessService final : public v1::Access::CallbackService {
 public:
  AccessService(Security& security, const Clock& clock, RpcMetrics& metrics)
      : security_(security), clock_(clock), metrics_(metrics) {}

  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext* context,
                                        const v1::CreateTokenRequest* request,
                                        v1::CreateTokenResponse* response) override;
  grpc::ServerUnaryReactor* ListCredentials(grpc::CallbackServerContext* context,
                                            const v1::ListCredentialsRequest* request,
                                            v1::ListCredentialsResponse* response) override;
  grpc::ServerUnaryReactor* RevokeCredential(grpc::CallbackServerContext* context,
                                             const v1::RevokeCredentialRequest* request,
                                             v1::RevokeCredentialResponse* response) override;
  grpc::ServerUnaryReactor* Enrol(grpc::CallbackServerContext* context,
                                  const v1::EnrolRequest* request,
                                  v1::EnrolResponse* response) override;
  grpc::ServerUnaryReactor* RenewCertificate(grpc::CallbackServerContext* context,
                                             const v1::RenewCertificateRequest* request,
                                             v1::RenewCertificateResponse* response) override;

 private:
  // Runs `act` for a caller that the gate admits, and answers with the credential that it is about
  // in the audit log.
  grpc::ServerUnaryReactor* answer(
      grpc::CallbackServerContext* context, const char* method,
      const std::function<absl::StatusOr<v1::Credential>(const Identity&)>& act) const;
  // Requires: read_request() was right.
  absl::StatusOr<std::string> certify(const v1::Credential& certificate,
                                      const std::string& public_key) const;
  // The public key of the request. FAILED_PRECONDITION: nobody gets certificates here.
  absl::StatusOr<std::string> read_request(const std::string& certificate_request) const;

  Security& security_;
  const Clock& clock_;
  RpcMetrics& metrics_;
};

}  // namespace tessera::server
