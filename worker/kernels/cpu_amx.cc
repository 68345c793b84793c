#include "worker/kernels/amx_products.h"
#include "worker/kernels/vec_tiles.h"

namespace tessera {

const RowProductKernel kAmxProducts = products_by_tiles;

}  // namespace tessera
