#include "tests/server/security/secure_service.h"

#include <fstream>
#include <sstream>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "server/security/authority.h"
#include "server/security/x509.h"
#include "worker/agent/certificate.h"

namespace tessera::server {
namespace {

constexpr std::chrono::seconds kPatience{20};

std::vector<std::string> with_listener(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--listen", "127.0.0.1:0"});
  return flags;
}

std::shared_ptr<grpc::Channel> connect(int port, const grpc::SslCredentialsOptions& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port), grpc::SslCredentials(tls),
                                   arguments);
}

}  // namespace

std::unique_ptr<grpc::ClientContext> Caller::context() const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + kPatience);
  if (!authorization.empty()) context->AddMetadata("authorization", authorization);
  return context;
}

grpc::Status call(const Caller& caller, const std::string& method,
                  const google::protobuf::Message& request, grpc::ByteBuffer* answer) {
  const auto context = caller.context();
  grpc::GenericStub stub(caller.channel);
  grpc::CompletionQueue queue;
  const auto await = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  // All kinds of calls are the same on the wire.
  const auto stream = stub.PrepareCall(context.get(), "/" + method, &queue);
  stream->StartCall(nullptr);
  await();
  grpc::ByteBuffer sent, received;
  bool own = false;
  grpc::SerializationTraits<google::protobuf::Message>::Serialize(request, &sent, &own);
  stream->Write(sent, nullptr);
  await();
  stream->Read(&received, nullptr);
  const bool answered = await();
  if (answered) context->TryCancel();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  await();
  queue.Shutdown();
  if (answer != nullptr) answer->Swap(&received);
  return answered ? grpc::Status::OK : status;
}

SecureService::SecureService(std::vector<std::string> flags)
    : service_(with_listener(std::move(flags))) {}

int SecureService::port() const {
  int port = 0;
  std::ifstream(service_.directory() / "state/grpc.port") >> port;
  return port;
}

std::string SecureService::authority() const {
  std::ostringstream text;
  text << std::ifstream(service_.directory() / "state/tls/ca.pem").rdbuf();
  return text.str();
}

Caller SecureService::with_token(const std::string& name, const std::string& secret) const {
  return {name, connect(port(), {authority(), "", ""}), secret.empty() ? "" : "Bearer " + secret};
}

Caller SecureService::with_certificate(const std::string& name, const std::string& key,
                                       const std::string& certificate) const {
  return {name, connect(port(), {authority(), key, certificate}), ""};
}

v1::CreateTokenResponse SecureService::create_token(v1::Credential::Role role,
                                                    const std::string& project,
                                                    int64_t lifetime_seconds) {
  v1::CreateTokenRequest request;
  v1::CreateTokenResponse response;
  request.set_role(role);
  if (!project.empty()) request.add_projects(project);
  request.mutable_lifetime()->set_seconds(lifetime_seconds);
  const grpc::Status status = v1::Access::NewStub(service_.channel())
                                  ->CreateToken(local().context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

Caller SecureService::enrolled(const std::string& node) {
  const Caller caller = with_token("", create_token(v1::Credential::AGENT).secret());
  const std::string key = agent::make_key();
  v1::EnrolRequest request;
  v1::EnrolResponse response;
  request.set_node(node);
  request.set_certificate_request(*agent::make_certificate_request(key));
  const grpc::Status status =
      v1::Access::NewStub(caller.channel)->Enrol(caller.context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return with_certificate("agent " + node, key, response.certificate());
}

grpc::Status SecureService::revoke(const std::string& id) {
  v1::RevokeCredentialRequest request;
  v1::RevokeCredentialResponse response;
  request.set_id(id);
  return v1::Access::NewStub(service_.channel())
      ->RevokeCredential(local().context().get(), request, &response);
}

ForeignCertificate make_foreign_certificate(const std::string& uri) {
  const absl::Time now = absl::Now();
  const Validity validity{now - absl::Minutes(1), now + absl::Hours(1)};
  const std::string authority_key = make_key();
  ForeignCertificate foreign;
  foreign.authority = *make_authority(authority_key, "another", validity);
  foreign.key = make_key();
  foreign.certificate = *issue(
      foreign.authority, authority_key, *public_key_of(foreign.key),
      {.common_name = "agent", .hosts = {}, .uri = uri, .is_server = false, .validity = validity});
  return foreign;
}

std::string reason_of(const grpc::Status& status) { return error_info(status).reason(); }

}  // namespace tessera::server
