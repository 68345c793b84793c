#include "worker/kernels/cpu_sets.h"
#include "worker/kernels/vec_table.h"

namespace tessera {

const CpuKernels kAvx512Kernels = make_kernels<16>("avx512");

}  // namespace tessera
