#include "worker/agent/network.h"

#include <absl/strings/str_cat.h>
#include <netdb.h>
#include <sys/socket.h>

#include <memory>
#include <string_view>

namespace tessera::agent {
namespace {

constexpr int kBacklog = 4096;  // As many ranks as a job may have; the kernel bounds it further.

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

absl::StatusOr<Addresses> resolve(const std::string& host, const char* port, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port, &hints, &found); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve \"", host, "\": ", ::gai_strerror(error)));
  }
  return Addresses(found, &::freeaddrinfo);
}

// Numeric host and port that the socket is bound to.
absl::StatusOr<std::pair<std::string, int>> bound_to(const UniqueFd& fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return absl::InternalError("cannot tell what a socket is bound to");
  }
  return std::pair<std::string, int>(host, std::stoi(port));
}

}  // namespace

absl::StatusOr<Listener> listen_on(const std::string& address) {
  absl::StatusOr<Addresses> addresses = resolve(address, "0", SOCK_STREAM);
  if (!addresses.ok()) return addresses.status();
  const addrinfo& info = **addresses;
  Listener listener;
  listener.fd = UniqueFd(::socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.fd.valid() || ::bind(listener.fd.get(), info.ai_addr, info.ai_addrlen) != 0 ||
      ::listen(listener.fd.get(), kBacklog) != 0) {
    return errno_status(absl::StrCat("listen on ", address));
  }
  auto bound = bound_to(listener.fd);
  if (!bound.ok()) return bound.status();
  listener.port = bound->second;
  return listener;
}

absl::StatusOr<std::string> local_address_towards(const std::string& target) {
  if (target.starts_with("unix:")) return "127.0.0.1";
  std::string_view rest = target;
  // gRPC's long form, as in dns:///host:port.
  if (const size_t scheme = rest.rfind('/'); scheme != rest.npos) rest.remove_prefix(scheme + 1);
  const size_t colon = rest.rfind(':');
  if (colon == rest.npos || colon == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", target, "\" is neither unix:PATH nor HOST:PORT"));
  }
  std::string host(rest.substr(0, colon));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  absl::StatusOr<Addresses> addresses =
      resolve(host, std::string(rest.substr(colon + 1)).c_str(), SOCK_DGRAM);
  if (!addresses.ok()) return addresses.status();
  const addrinfo& info = **addresses;
  // Connecting a datagram socket sends nothing; it only makes the kernel choose the route.
  UniqueFd fd(::socket(info.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), info.ai_addr, info.ai_addrlen) != 0) {
    return errno_status(absl::StrCat("find a route to ", target));
  }
  auto bound = bound_to(fd);
  if (!bound.ok()) return bound.status();
  return bound->first;
}

bool is_on_this_machine(const std::string& target) {
  const absl::StatusOr<std::string> address = local_address_towards(target);
  return address.ok() && (address->starts_with("127.") || *address == "::1");
}

}  // namespace tessera::agent
