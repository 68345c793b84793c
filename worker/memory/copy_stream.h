// Copies between a device and its host's memory that run beside the computation where the device
// can do so. no_copy_stream.cc or copy_stream_cuda.cc says how, by what is linked.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace tessera {

// Copies run one after the other, each after the work that the thread had issued before it. Not
// thread safe; one thread at a time.
class CopyStream {
 public:
  virtual ~CopyStream() = default;
  // to.copy_(from), of contiguous bytes. Both must live until a wait for a later mark. Between meta
  // tensors nothing happens.
  virtual void copy(const at::Tensor& to, const at::Tensor& from) = 0;

  // The copies so far.
  using Mark = std::shared_ptr<void>;
  virtual Mark mark() = 0;
  // What this thread issues from here on comes after them.
  virtual void wait(const Mark& mark) = 0;
};

// Of tensors on `device`.
std::unique_ptr<CopyStream> make_copy_stream(at::Device device);

// One whose copies are done when copy() returns.
std::unique_ptr<CopyStream> make_plain_copy_stream();

}  // namespace tessera
