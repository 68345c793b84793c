// What a stretch of a rehearsal would do on its device, counted while it is rehearsed.
//
// LibTorch's operators are counted by themselves, those that are made of others not beside them.
// Kernels of ours report what they would do where they would do it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <functional>
#include <initializer_list>

namespace tessera {

struct WorkCount {
  double flops = 0;          // of matrix products and attention
  int64_t memory_bytes = 0;  // read and written on the device
  int64_t cpu_bytes = 0;     // read and written by the CPU for a device that is none
  int64_t link_bytes = 0;    // received from other ranks
  int64_t host_bytes = 0;    // between device and host, both ways
  int64_t disk_bytes = 0;    // to and from disk
  int64_t num_operators = 0;

  // += times * other
  void add(const WorkCount& other, int64_t times);
};

// Adds to `count` what this thread does while it lives. One a thread at a time.
class WorkScope {
 public:
  explicit WorkScope(WorkCount& count);
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  at::CallbackHandle callback_ = at::INVALID_CALLBACK_HANDLE;
};

// Runs `body` once, where a run would do so `times` times, and counts it as often.
void count_times(int64_t times, const std::function<void()>& body);

// Report one operation; nothing where no WorkScope lives. `touched`: what is read or written, each
// as often as it is; undefined tensors count for nothing.
void count_kernel(double flops, std::initializer_list<at::Tensor> touched);
void count_kernel(double flops, int64_t memory_bytes);
// Likewise, of a kernel that the CPU runs whatever the device is.
void count_cpu_kernel(std::initializer_list<at::Tensor> touched);
void count_link_bytes(int64_t bytes);
void count_host_bytes(int64_t bytes);
void count_disk_bytes(int64_t bytes);

}  // namespace tessera
