// The norm of all gradients, and what clipping makes of it.
#pragma once

#include <vector>

#include "worker/parallel/shard.h"

namespace tessera {

// L2 norm of the units' gradients over all ranks of the group; NaN or infinite if any is. On a CPU
// each parameter is summed in float32 as ATen's kernel sums it whole on one rank, so that the norm
// is TRL's, whatever the number of ranks; see the source. Collective.
double gradient_norm(const std::vector<ShardedUnit*>& units, Collectives& group);

// What to scale gradients of this norm by, so that it is at most max_norm (0: no limit).
// Source: torch.nn.utils.clip_grad_norm_.
double clip_scale(double norm, double max_norm);

}  // namespace tessera
