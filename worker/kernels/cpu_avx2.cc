#include "worker/kernels/cpu_sets.h"
#include "worker/kernels/vec_table.h"

namespace tessera {

const CpuKernels kAvx2Kernels = make_kernels<8>("avx2");

}  // namespace tessera
