// Ranks as threads of the test's process, over any CPU backend.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <thread>

#include "worker/parallel/collectives.h"
#include "worker/parallel/world.h"

namespace tessera::testing {

struct Listener {
  int fd = -1;
  int port = 0;
};

// A listening socket on a free loopback port, as an agent hands it to rank 0.
inline Listener listen_on_loopback() {
  Listener listener;
  listener.fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(listener.fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener.fd, 64) != 0 ||
      ::getsockname(listener.fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    std::abort();
  }
  listener.port = ntohs(address.sin_port);
  return listener;
}

enum class Backend { kThreads, kSharedMemory, kGloo };

// Runs `body` in a thread for each rank, and rethrows the first rank's exception.
inline void run_threads(int size, const std::function<void(int rank)>& body) {
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

inline RendezvousOptions rendezvous_of(const Listener& listener, int rank, int size) {
  RendezvousOptions options;
  options.port = listener.port;
  options.listen_fd = rank == 0 ? listener.fd : 0;
  options.rank = rank;
  options.size = size;
  options.timeout = std::chrono::minutes(1);
  return options;
}

// Runs `body` on every rank, each in a thread of its own.
inline void run_ranks(Backend backend, int size, const std::function<void(Collectives&)>& body) {
  const Listener listener = backend == Backend::kThreads ? Listener{} : listen_on_loopback();
  std::vector<std::unique_ptr<Collectives>> groups(size);
  if (backend == Backend::kThreads) groups = make_thread_collectives(size);
  run_threads(size, [&](int rank) {
    std::unique_ptr<Collectives> group = std::move(groups[rank]);
    if (backend == Backend::kGloo)
      group = make_gloo_collectives(rendezvous_of(listener, rank, size));
    if (backend == Backend::kSharedMemory)
      group = make_cpu_collectives(rendezvous_of(listener, rank, size));
    body(*group);
  });
}

// The same with what makes groups of them.
inline void run_worlds(Backend backend, int size, const std::function<void(World&)>& body) {
  const Listener listener = backend == Backend::kThreads ? Listener{} : listen_on_loopback();
  std::vector<std::unique_ptr<World>> worlds(size);
  if (backend == Backend::kThreads) worlds = make_thread_worlds(size);
  run_threads(size, [&](int rank) {
    std::unique_ptr<World> world = std::move(worlds[rank]);
    if (backend == Backend::kGloo) world = make_gloo_world(rendezvous_of(listener, rank, size));
    if (backend == Backend::kSharedMemory)
      world = make_cpu_world(rendezvous_of(listener, rank, size));
    body(*world);
  });
}

}  // namespace tessera::testing
