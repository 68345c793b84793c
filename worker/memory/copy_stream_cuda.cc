// Copies on a CUDA stream of their own. Linked in place of no_copy_stream.cc with TESSERA_CUDA.
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/memory/copy_stream.h"

namespace tessera {
namespace {

class CudaCopyStream final : public CopyStream {
 public:
  explicit CudaCopyStream(c10::DeviceIndex device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)) {}

  void copy(const at::Tensor& to, const at::Tensor& from) override {
    at::cuda::CUDAEvent issued;
    issued.record(c10::cuda::getCurrentCUDAStream(stream_.device_index()));
    issued.block(stream_);
    const c10::cuda::CUDAStreamGuard on_stream(stream_);
    to.copy_(from, /*non_blocking=*/true);
  }

  Mark mark() override {
    auto event = std::make_shared<at::cuda::CUDAEvent>();
    event->record(stream_);
    return event;
  }

  void wait(const Mark& mark) override {
    if (!mark) return;
    static_cast<at::cuda::CUDAEvent*>(mark.get())
        ->block(c10::cuda::getCurrentCUDAStream(stream_.device_index()));
  }

 private:
  c10::cuda::CUDAStream stream_;
};

}  // namespace

std::unique_ptr<CopyStream> make_copy_stream(at::Device device) {
  if (!device.is_cuda()) return make_plain_copy_stream();
  return std::make_unique<CudaCopyStream>(device.index());
}

}  // namespace tessera
