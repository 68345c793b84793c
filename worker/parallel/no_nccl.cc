// Linked in place of nccl.cc in a build without TESSERA_CUDA.
#include "worker/no_cuda.h"
#include "worker/parallel/world.h"

namespace tessera {

std::unique_ptr<World> make_nccl_world(const RendezvousOptions&, int) {
  throw std::runtime_error(kNoCuda);
}

}  // namespace tessera
