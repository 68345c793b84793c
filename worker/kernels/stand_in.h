// Tensors without data (of at::kMeta) in the place of a device's: what a rehearsal runs on. Code on
// the path of a step treats them as tensors of the device they stand for, but for the values, which
// it neither reads nor computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

struct StandIn {
  at::DeviceType device = at::kCPU;
  int num_threads = 1;  // of one rank, on a CPU
  // What the device's allocator gives are multiples of so many bytes.
  int64_t granularity = 1;
};

// While it lives, tensors of at::kMeta stand for those of such a device on this thread. Scopes
// nest.
class StandInScope {
 public:
  explicit StandInScope(const StandIn& stand_in);
  ~StandInScope();
  StandInScope(const StandInScope&) = delete;
  StandInScope& operator=(const StandInScope&) = delete;

 private:
  StandIn previous_;
};

// What tensors without data stand for on this thread; outside of any scope an ordinary CPU's.
const StandIn& stand_in();

// The device whose kernels a tensor takes: its own, or the one it stands for.
at::DeviceType kernel_device(at::Device device);
inline at::DeviceType kernel_device(const at::Tensor& x) { return kernel_device(x.device()); }
inline bool on_cpu(at::Device device) { return kernel_device(device) == at::kCPU; }
inline bool on_cpu(const at::Tensor& x) { return on_cpu(x.device()); }

// Where to make a tensor that the host writes, for a job on `device`: the CPU; tensors that stand
// for a CPU's are counted there, too.
at::Device host_device(at::Device device);

// Threads that a kernel on `x` may use.
int num_kernel_threads(const at::Tensor& x);

// The values of a float64 tensor; zeros where it has none.
std::vector<double> host_values(const at::Tensor& x);
// The value of a tensor of one element; `without` where it has none.
double host_value(const at::Tensor& x, double without = 0);

}  // namespace tessera
