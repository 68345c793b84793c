// The gRPC server: addresses, limits, health and reflection.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/status/statusor.h"

namespace tessera::server {

// Serves on every address: unix:PATH, or HOST:PORT where HOST is this machine's loopback. Anything
// else is INVALID_ARGUMENT: without TLS the service must not be reachable from other machines.
absl::StatusOr<std::unique_ptr<grpc::Server>> serve(const std::vector<std::string>& addresses,
                                                    const std::vector<grpc::Service*>& services);

// Whether HOST of HOST:PORT is the loopback; false for what has no port.
bool is_loopback(const std::string& address);

}  // namespace tessera::server
