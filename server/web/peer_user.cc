#include "server/web/peer_user.h"

#include <arpa/inet.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace tessera::server {
namespace {

// As /proc/net/tcp writes it: words of the address as this machine reads them, and the port.
std::string table_entry(int family, const SocketAddress& address) {
  uint32_t words[4] = {};
  if (::inet_pton(family, address.host.c_str(), words) != 1) return "";
  std::string text;
  char part[16];
  for (int i = 0; i < (family == AF_INET ? 1 : 4); ++i) {
    std::snprintf(part, sizeof part, "%08" PRIX32, words[i]);
    text += part;
  }
  std::snprintf(part, sizeof part, ":%04X", static_cast<unsigned>(address.port));
  return text + part;
}

}  // namespace

std::optional<uid_t> peer_user(const SocketAddress& peer, const SocketAddress& own) {
  const int family = peer.host.find(':') == std::string::npos ? AF_INET : AF_INET6;
  const std::string wanted_from = table_entry(family, peer);
  const std::string wanted_to = table_entry(family, own);
  std::ifstream table(family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6");
  for (std::string line; std::getline(table, line);) {
    char from[64] = "", to[64] = "";
    unsigned user = 0;
    uint64_t inode = 0;
    const int fields =
        std::sscanf(line.c_str(), " %*d: %63s %63s %*x %*x:%*x %*x:%*x %*x %u %*u %" SCNu64, from,
                    to, &user, &inode);
    // One that its process has closed stands there as root's, without an inode.
    if (fields == 4 && inode != 0 && wanted_from == from && wanted_to == to) return user;
  }
  return std::nullopt;
}

}  // namespace tessera::server
