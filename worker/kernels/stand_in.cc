#include "worker/kernels/stand_in.h"

#include <ATen/Parallel.h>

#include <utility>

namespace tessera {
namespace {

thread_local StandIn current;

}  // namespace

StandInScope::StandInScope(const StandIn& stand_in) : previous_(std::exchange(current, stand_in)) {}

StandInScope::~StandInScope() { current = previous_; }

const StandIn& stand_in() { return current; }

at::DeviceType kernel_device(at::Device device) {
  return device.is_meta() ? current.device : device.type();
}

at::Device host_device(at::Device device) {
  return device.is_meta() && current.device == at::kCPU ? at::kMeta : at::kCPU;
}

int num_kernel_threads(const at::Tensor& x) {
  return x.is_meta() ? current.num_threads : at::get_num_threads();
}

std::vector<double> host_values(const at::Tensor& x) {
  if (x.is_meta()) return std::vector<double>(x.numel());
  const at::Tensor values = x.cpu();
  const auto* begin = values.const_data_ptr<double>();
  return {begin, begin + values.numel()};
}

double host_value(const at::Tensor& x, double without) {
  return x.is_meta() ? without : x.item<double>();
}

}  // namespace tessera
