// Linked in place of nccl.cc in a build without TESSERA_CUDA.
#include "worker/parallel/collectives.h"

namespace tessera {

std::unique_ptr<Collectives> make_nccl_collectives(const RendezvousOptions&, int) {
  throw std::runtime_error("this build has no CUDA backend; configure with -DTESSERA_CUDA=ON");
}

}  // namespace tessera
