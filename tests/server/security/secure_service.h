// A tesserad that listens with TLS, and callers of every kind.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "tessera/v1/access.grpc.pb.h"
#include "tests/server/service.h"

namespace tessera::server {

// A way to call: a channel, and the headers of its calls.
struct Caller {
  std::string name;
  std::shared_ptr<grpc::Channel> channel;
  std::string authorization;

  // A context with a deadline and the headers.
  std::unique_ptr<grpc::ClientContext> context() const;
};

// What a call came to: its status, or OK where a first answer came, which goes to `answer`.
grpc::Status call(const Caller& caller, const std::string& method,
                  const google::protobuf::Message& request, grpc::ByteBuffer* answer = nullptr);

class SecureService {
 public:
  explicit SecureService(std::vector<std::string> flags = {});

  Service& service() { return service_; }
  int port() const;
  std::string authority() const;

  Caller local(const std::string& authorization = "") {
    return {"local", service_.channel(), authorization};
  }
  // Over TLS: with a token, with a certificate, or with nothing.
  Caller with_token(const std::string& name, const std::string& secret) const;
  Caller with_certificate(const std::string& name, const std::string& key,
                          const std::string& certificate) const;

  // Made by the local operator.
  v1::CreateTokenResponse create_token(v1::Credential::Role role, const std::string& project = "",
                                       int64_t lifetime_seconds = 3600);
  // Enrols a node with a new token.
  Caller enrolled(const std::string& node);
  grpc::Status revoke(const std::string& id);

 private:
  Service service_;
};

// Key and certificate of an authority that is not the service's, which names `uri`.
struct ForeignCertificate {
  std::string key;
  std::string certificate;
  std::string authority;
};
ForeignCertificate make_foreign_certificate(const std::string& uri);

// The reason of the status's ErrorInfo.
std::string reason_of(const grpc::Status& status);

}  // namespace tessera::server
