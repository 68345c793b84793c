// How often probability ratios are clipped, by TRL's names.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/batch.h"
#include "worker/objectives/metric_sums.h"
#include "worker/parallel/collectives.h"

namespace tessera {

// Of each completion on this rank, float64 [S]: ratios that are clipped below and above, of how
// many.
struct ClippedRatios {
  at::Tensor low_S, high_S, all_S;
};

// Adds clip_ratio/...: the means over all ratios, and the least and the greatest share of any
// completion on all ranks. Collective.
void measure_clipped(const ClippedRatios& clipped, const Batch& batch, Collectives& data,
                     MetricSums& measured);

}  // namespace tessera
