// How the ranks of the process-group backends find each other.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <exception>
#include <string>

#include "worker/parallel/collectives.h"

namespace tessera {

// The key-value store that rank 0 serves. Blocks until all ranks have connected.
c10::intrusive_ptr<c10d::Store> make_store(const RendezvousOptions& options);

// Over Gloo, its connections made through `store`. Throws what LibTorch does.
std::unique_ptr<Collectives> make_gloo_collectives(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const RendezvousOptions& options);

// The address of the interface that leads to the rendezvous, as a number: what peers can reach us
// at.
std::string local_address_towards(const RendezvousOptions& options);

// Over shared memory where it can be, else over Gloo.
std::unique_ptr<Collectives> make_cpu_collectives(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const RendezvousOptions& options);

// what(), without the stack trace that LibTorch's errors carry.
std::string describe(const std::exception& error);
std::string describe_rendezvous_failure(const RendezvousOptions& options,
                                        const std::exception& error);

// make(), whose errors are told as NetworkErrors of this rendezvous.
template <typename Make>
auto or_rendezvous_failure(const RendezvousOptions& options, const Make& make) {
  try {
    return make();
  } catch (const NetworkError&) {
    throw;
  } catch (const std::exception& error) {
    throw NetworkError(describe_rendezvous_failure(options, error));
  }
}

}  // namespace tessera
