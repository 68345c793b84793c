// The tokens of a microbatch whose next one is the least certain.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/batch.h"
#include "worker/parallel/collectives.h"

namespace tessera {

// entropy_L float32 of this rank's labels. float32 [L]: 1 for those among the `share` with the
// highest entropy of all ranks' labels, of which there are num_labels, else 0: those that are at
// least the (1 - share)-quantile, between two neighbours a linear interpolation. Requires
// batch.completions. Collective.
at::Tensor high_entropy_mask(const at::Tensor& entropy_L, double share, int64_t num_labels,
                             const Batch& batch, Collectives& data);

}  // namespace tessera
