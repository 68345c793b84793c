// Work beside what a device computes: copies between it and host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace tessera {

// One order of work on a device, next to that of the current stream. Host tensors that take part
// come from empty_host() (worker/memory/host_memory.h). Of a CPU, or of no device at all, there is
// one order only, and all work is done when its call returns. Not thread safe; one thread at a
// time.
class SideStream {
 public:
  virtual ~SideStream() = default;
  // What `work` asks of the device is done on the side, behind all that was asked of it so far.
  // Tensors that `work` touches must live until join() of a later mark.
  virtual void run(const std::function<void()>& work) = 0;

  // All that was run on the side so far.
  using Mark = std::shared_ptr<void>;
  virtual Mark mark() = 0;
  // What this thread asks of the device from now on is done behind that. Null: nothing was.
  virtual void join(const Mark& mark) = 0;
  void join() { join(mark()); }

  // Blocks until all that was run on the side is done: the CPU may read and write what it touched.
  virtual void finish() = 0;
};

std::unique_ptr<SideStream> make_side_stream(at::Device device);

// For make_side_stream(): of a CUDA device.
std::unique_ptr<SideStream> make_cuda_side_stream(at::Device device);

}  // namespace tessera
