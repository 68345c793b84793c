// All ranks of a job, and the groups of some of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/parallel/collectives.h"

namespace tessera {

class World {
 public:
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The group of these ranks of the world, of which this is one, in this order: the group's rank i
  // is ranks[i]. Of one rank it is the identity. Collective over them. `name`: groups of one rank
  // have different ones. Throws NetworkError.
  virtual std::unique_ptr<Collectives> make_group(const std::string& name,
                                                  const std::vector<int>& ranks) = 0;
};

std::unique_ptr<World> make_single_world();

// One object a thread, as make_thread_collectives().
std::vector<std::unique_ptr<World>> make_thread_worlds(
    int size, std::chrono::milliseconds timeout = std::chrono::minutes(1));

// Groups over shared memory where all their ranks are processes of one user on one host, else over
// Gloo. Rank 0's must live until all ranks have made their groups.
std::unique_ptr<World> make_cpu_world(const RendezvousOptions& options);
// All groups over Gloo.
std::unique_ptr<World> make_gloo_world(const RendezvousOptions& options);
// Uses CUDA device `device_index`. Throws std::runtime_error in a build without TESSERA_CUDA.
std::unique_ptr<World> make_nccl_world(const RendezvousOptions& options, int device_index);

// One rank of a world whose others are not there (make_fake_collectives).
struct FakeWorld {
  int rank = 0;
  int size = 1;
  bool cuda = false;
  int ranks_per_machine = 1;  // ranks of one machine follow each other
};
std::unique_ptr<World> make_fake_world(const FakeWorld& world);

}  // namespace tessera
