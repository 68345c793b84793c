// The tables by instruction set, for cpu_kernels.cc: a machine may not be able to run all of them.
#pragma once

#include "worker/kernels/cpu_kernels.h"

namespace tessera {

extern const CpuKernels kBaselineKernels;  // 4 lanes: what every processor has
extern const CpuKernels kAvx2Kernels;      // AVX2 and FMA
extern const CpuKernels kAvx512Kernels;    // AVX-512 F, BW, DQ, VL

}  // namespace tessera
