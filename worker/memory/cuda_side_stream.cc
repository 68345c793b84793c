#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/memory/side_stream_common.h"

namespace tessera {
namespace {

class CudaSideStream final : public SideStream {
 public:
  explicit CudaSideStream(at::Device device)
      : side_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  void run(const std::function<void()>& work) override {
    order(c10::cuda::getCurrentCUDAStream(side_.device_index()), side_);
    const c10::cuda::CUDAStreamGuard guard(side_);
    work();
  }

  void join() override { order(side_, c10::cuda::getCurrentCUDAStream(side_.device_index())); }

  void finish() override { side_.synchronize(); }

 private:
  static void order(c10::cuda::CUDAStream before, c10::cuda::CUDAStream after) {
    at::cuda::CUDAEvent event;
    event.record(before);
    event.block(after);
  }

  c10::cuda::CUDAStream side_;
};

}  // namespace

std::unique_ptr<SideStream> make_side_stream(at::Device device) {
  if (device.is_cuda()) return std::make_unique<CudaSideStream>(device);
  return std::make_unique<DirectStream>();
}

}  // namespace tessera
