// Copies between a device and host memory beside what the device computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace tessera {

// One order of work on a device, next to that of the current stream. Host tensors that take part
// come from empty_host() (worker/memory/host_memory.h). Of a CPU, or of no device at all, there is
// one order only, and all work is done when its call returns. Not thread safe.
class SideStream {
 public:
  virtual ~SideStream() = default;
  // What `work` asks of the device is done on the side, behind all that was asked of it so far.
  // Tensors that `work` touches must live until join().
  virtual void run(const std::function<void()>& work) = 0;
  // What is asked of the device from now on is done behind all that was run on the side.
  virtual void join() = 0;
  // Blocks until all that was run on the side is done: the CPU may read and write what it touched.
  virtual void finish() = 0;
};

std::unique_ptr<SideStream> make_side_stream(at::Device device);

}  // namespace tessera
