#include "worker/kernels/cpu_sets.h"
#include "worker/kernels/vec_table.h"

namespace tessera {

const CpuKernels kBaselineKernels = make_kernels<4>("baseline");

}  // namespace tessera
