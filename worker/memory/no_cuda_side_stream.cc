// Linked in place of cuda_side_stream.cc in a build without TESSERA_CUDA.
#include "worker/memory/side_stream_common.h"

namespace tessera {

std::unique_ptr<SideStream> make_side_stream(at::Device) {
  return std::make_unique<DirectStream>();
}

}  // namespace tessera
