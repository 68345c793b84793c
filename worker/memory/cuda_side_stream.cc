// Linked in place of no_cuda_side_stream.cc with TESSERA_CUDA.
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/memory/side_stream.h"

namespace tessera {
namespace {

class CudaSideStream final : public SideStream {
 public:
  explicit CudaSideStream(at::Device device)
      : side_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  using SideStream::join;

  void run(const std::function<void()>& work) override {
    at::cuda::CUDAEvent asked;
    asked.record(current());
    asked.block(side_);
    const c10::cuda::CUDAStreamGuard guard(side_);
    work();
  }

  Mark mark() override {
    auto event = std::make_shared<at::cuda::CUDAEvent>();
    event->record(side_);
    return event;
  }

  void join(const Mark& mark) override {
    if (mark) static_cast<at::cuda::CUDAEvent*>(mark.get())->block(current());
  }

  void finish() override { side_.synchronize(); }

 private:
  c10::cuda::CUDAStream current() const {
    return c10::cuda::getCurrentCUDAStream(side_.device_index());
  }

  c10::cuda::CUDAStream side_;
};

}  // namespace

std::unique_ptr<SideStream> make_cuda_side_stream(at::Device device) {
  return std::make_unique<CudaSideStream>(device);
}

}  // namespace tessera
