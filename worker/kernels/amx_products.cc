#include "worker/kernels/amx_products.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace tessera {
namespace {

// Linux gives a process the state of tile registers once it has asked for it.
bool may_use_tiles() {
  constexpr long kRequestState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
  return ::syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
}

}  // namespace

RowProductKernel amx_products() {
  static const bool has_amx = cpu_kernels(CpuSet::kAvx512) != nullptr &&
                              __builtin_cpu_supports("amx-tile") &&
                              __builtin_cpu_supports("amx-bf16") && may_use_tiles();
  return has_amx ? kAmxProducts : nullptr;
}

}  // namespace tessera
