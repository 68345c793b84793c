// The little of sockets that the agent does itself; gRPC does the rest.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "worker/agent/file_util.h"

namespace tessera::agent {

struct Listener {
  UniqueFd fd;
  int port = 0;
};

// A TCP socket bound to `address` (a name or a number) on a port of the kernel's choice, and
// listening.
absl::StatusOr<Listener> listen_on(const std::string& address);

// The address that this machine reaches `target` ("unix:PATH" or "HOST:PORT") from: where machines
// on that network find it. 127.0.0.1 for a Unix socket.
absl::StatusOr<std::string> local_address_towards(const std::string& target);

// Whether `target` is on this machine, where no network can come between.
bool is_on_this_machine(const std::string& target);

}  // namespace tessera::agent
