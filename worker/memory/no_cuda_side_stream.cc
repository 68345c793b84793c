// Linked in place of cuda_side_stream.cc in a build without TESSERA_CUDA.
#include <stdexcept>

#include "worker/memory/side_stream.h"
#include "worker/no_cuda.h"

namespace tessera {

std::unique_ptr<SideStream> make_cuda_side_stream(at::Device) { throw std::runtime_error(kNoCuda); }

}  // namespace tessera
