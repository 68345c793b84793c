#include "worker/kernels/amx_products.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera {
namespace {

// __builtin_cpu_supports() does not know these in every compiler that builds this.
bool has_tiles() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // of leaf 7's edx
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
         (edx & (kAmxBf16 | kAmxTile)) == (kAmxBf16 | kAmxTile);
}

// Linux gives a process the state of tile registers once it has asked for it.
bool may_use_tiles() {
  constexpr long kRequestState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
  return ::syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
}

}  // namespace

RowProductKernel amx_products() {
  static const bool has_amx =
      cpu_kernels(CpuSet::kAvx512) != nullptr && has_tiles() && may_use_tiles();
  return has_amx ? kAmxProducts : nullptr;
}

}  // namespace tessera
