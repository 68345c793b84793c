// The gRPC server: addresses, limits, health and reflection.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/status/statusor.h"

namespace tessera::server {

struct Listener {
  // unix:PATH or HOST:PORT.
  std::string address;
  std::shared_ptr<grpc::ServerCredentials> credentials;
  // Set by serve(): of HOST:PORT, the port that it is.
  int port = 0;
};

// Serves on every listener. INVALID_ARGUMENT: the path of a socket is too long.
absl::StatusOr<std::unique_ptr<grpc::Server>> serve(std::vector<Listener>& listeners,
                                                    const std::vector<grpc::Service*>& services);

// The same where another coordinator leads: `refusal` answers every call but those of health, which
// says NOT_SERVING.
absl::StatusOr<std::unique_ptr<grpc::Server>> serve_standby(std::vector<Listener>& listeners,
                                                            grpc::CallbackGenericService& refusal);

// Whether HOST of HOST:PORT is the loopback; false for what has no port.
bool is_loopback(const std::string& address);

}  // namespace tessera::server
