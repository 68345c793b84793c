// The way to a service: its address, what proves that it is the one, and who calls.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/channel.h>

#include "absl/status/statusor.h"

namespace tessera {

// For HOST:PORT. A service on this machine's Unix socket needs neither.
struct ConnectOptions {
  // The authority of the service's certificate, in PEM: the connection is TLS. Empty: it is not
  // encrypted, which a service takes on loopback alone, and only when told to.
  std::filesystem::path ca;
  // Holds a token, as `tessera token create` prints it. Empty: none is sent.
  std::filesystem::path token_file;
};

struct Connection {
  // Of each address, in order; at least one.
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  // The value of each call's authorization header. Empty: there is none.
  std::string authorization;
};

// `addresses`: one, or those of several coordinators with commas between, of which one leads. Does
// not wait for the service to be there. INVALID_ARGUMENT: the address is none, a file cannot be
// read, or what would be sent could be read on the way.
absl::StatusOr<Connection> make_connection(const std::string& addresses,
                                           const ConnectOptions& options);

}  // namespace tessera
