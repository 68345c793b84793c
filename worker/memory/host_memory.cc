#include "worker/memory/host_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>

#include "worker/kernels/work.h"
#include "worker/memory/allocators.h"

namespace tessera {
namespace {

c10::Allocator& pinned_allocator() {
  // Never destroyed: tensors may outlive main.
  static c10::Allocator* const allocator =
      make_charging_allocator(MemoryLedger::install(), *at::getHostAllocator(at::kCUDA)).release();
  return *allocator;
}

}  // namespace

at::Tensor empty_host(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  const HostSpaceScope host;
  if (!device.is_cuda()) return at::empty(sizes, at::TensorOptions(device).dtype(dtype));
  return at::Tensor(at::detail::empty_generic(
      sizes, &pinned_allocator(), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype, std::nullopt));
}

void copy_across(const at::Tensor& to, const at::Tensor& from) {
  count_host_bytes(static_cast<int64_t>(from.nbytes()));
  if (!from.is_meta()) to.copy_(from, /*non_blocking=*/true);
}

}  // namespace tessera
