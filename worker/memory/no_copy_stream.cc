// In place of copy_stream_cuda.cc, in builds without CUDA.
#include "worker/memory/copy_stream.h"

namespace tessera {

std::unique_ptr<CopyStream> make_copy_stream(at::Device device) {
  TORCH_CHECK(!device.is_cuda(), "this build has no CUDA");
  return make_plain_copy_stream();
}

}  // namespace tessera
