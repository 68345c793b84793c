// Row products (cpu_kernels.h) by the matrix unit that some processors have.
#pragma once

#include "worker/kernels/cpu_kernels.h"

namespace tessera {

using RowProductKernel = decltype(CpuKernels::row_products);

// By AMX: as exact as the others, faster of 16 rows and more, slower of fewer. Null where this
// machine has none.
RowProductKernel amx_products();

// What it runs, compiled for such a machine.
extern const RowProductKernel kAmxProducts;

}  // namespace tessera
