#include "worker/memory/device_memory.h"

namespace tessera {

void use_device(MemoryLedger& ledger, c10::Device device, int64_t limit_bytes) {
  if (device.is_cuda()) return use_cuda_device(ledger, device, limit_bytes);
  ledger.set_device_limit(limit_bytes);
}

std::optional<v1::DeviceAllocator> device_allocator(c10::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  return cuda_allocator(device);
}

}  // namespace tessera
