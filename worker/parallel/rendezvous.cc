#include "worker/parallel/rendezvous.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <system_error>

namespace tessera {
namespace {

struct AddressList {
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
  addrinfo* first = nullptr;
};

// Connecting a datagram socket sends nothing; it only picks the route. Empty: there is none.
std::string source_address(const addrinfo& to) {
  const int fd = ::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  sockaddr_storage from{};
  socklen_t length = sizeof from;
  char host[NI_MAXHOST] = {};
  const bool found = ::connect(fd, to.ai_addr, to.ai_addrlen) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&from), &length) == 0 &&
                     ::getnameinfo(reinterpret_cast<sockaddr*>(&from), length, host, sizeof host,
                                   nullptr, 0, NI_NUMERICHOST) == 0;
  ::close(fd);
  return found ? host : std::string();
}

}  // namespace

c10::intrusive_ptr<c10d::Store> make_store(const RendezvousOptions& options) {
  c10d::TCPStoreOptions store;
  store.port = static_cast<uint16_t>(options.port);
  store.isServer = options.rank == 0;
  store.numWorkers = options.size;
  store.timeout = options.timeout;
  if (options.rank == 0 && options.listen_fd > 0) store.masterListenFd = options.listen_fd;
  return c10::make_intrusive<c10d::TCPStore>(options.address, store);
}

std::string local_address_towards(const RendezvousOptions& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  AddressList list;
  const std::string port = std::to_string(options.port);
  if (int error = ::getaddrinfo(options.address.c_str(), port.c_str(), &hints, &list.first)) {
    throw NetworkError(options.address + ": " + ::gai_strerror(error));
  }
  for (const addrinfo* to = list.first; to != nullptr; to = to->ai_next) {
    if (std::string address = source_address(*to); !address.empty()) return address;
  }
  throw NetworkError("no route to " + options.address);
}

std::string describe(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
    return torch_error->what_without_backtrace();
  }
  return error.what();
}

std::string describe_rendezvous_failure(const RendezvousOptions& options,
                                        const std::exception& error) {
  return "rank " + std::to_string(options.rank) + " of " + std::to_string(options.size) +
         " could not join the others at " + options.address + ":" + std::to_string(options.port) +
         ": " + describe(error);
}

}  // namespace tessera
