// Linked in place of cuda_memory.cc in a build without TESSERA_CUDA.
#include <stdexcept>

#include "worker/memory/device_memory.h"
#include "worker/no_cuda.h"

namespace tessera {

void use_cuda_device(MemoryLedger&, c10::Device, int64_t) { throw std::runtime_error(kNoCuda); }

v1::DeviceAllocator cuda_allocator(c10::Device) { throw std::runtime_error(kNoCuda); }

}  // namespace tessera
