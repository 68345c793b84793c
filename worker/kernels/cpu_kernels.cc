#include "worker/kernels/cpu_kernels.h"

#include "worker/kernels/cpu_sets.h"

namespace tessera {

const CpuKernels* cpu_kernels(CpuSet set) {
  switch (set) {
    case CpuSet::kBaseline:
      return &kBaselineKernels;
    case CpuSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kAvx2Kernels
                                                                             : nullptr;
    case CpuSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                 ? &kAvx512Kernels
                 : nullptr;
  }
  return nullptr;
}

const CpuKernels& cpu_kernels() {
  static const CpuKernels& best = []() -> const CpuKernels& {
    if (const CpuKernels* kernels = cpu_kernels(CpuSet::kAvx512)) return *kernels;
    if (const CpuKernels* kernels = cpu_kernels(CpuSet::kAvx2)) return *kernels;
    return kBaselineKernels;
  }();
  return best;
}

}  // namespace tessera
