// Whose program is at the other end of a connection over the loopback.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace tessera::server {

struct SocketAddress {
  // An IP address, without brackets.
  std::string host;
  int port = 0;
};

// The user that holds the socket of this machine that is bound to `peer` and connected to `own`: by
// the kernel's table of sockets, so not what the peer says. Empty: there is no such socket, or no
// process holds it any more.
std::optional<uid_t> peer_user(const SocketAddress& peer, const SocketAddress& own);

}  // namespace tessera::server
