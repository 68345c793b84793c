// What a stretch of a rehearsal would do on its device, counted while it is rehearsed.
//
// LibTorch's operators are counted by themselves, those that are made of others not beside them.
// Kernels of ours report what they would do where they would do it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <initializer_list>

namespace tessera {

struct WorkCount {
  double flops = 0;          // of matrix products and attention
  int64_t memory_bytes = 0;  // read and written on the device
  int64_t link_bytes = 0;    // received from other ranks
  int64_t host_bytes = 0;    // between device and host, both ways
  int64_t disk_bytes = 0;    // to and from disk
  int64_t num_operators = 0;
};

// Adds to `count` what this thread does while it lives. One a thread at a time.
class WorkScope {
 public:
  explicit WorkScope(WorkCount& count);
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  at::CallbackHandle callback_;
};

// Report one operation; nothing where no WorkScope lives. `touched`: what is read or written, each
// as often as it is; undefined tensors count for nothing.
void count_kernel(double flops, std::initializer_list<at::Tensor> touched);
void count_kernel(double flops, int64_t memory_bytes);
void count_link_bytes(int64_t bytes);
void count_host_bytes(int64_t bytes);
void count_disk_bytes(int64_t bytes);

}  // namespace tessera
