// The ranks' times of a step, in a few numbers.
#pragma once

#include "tessera/v1/telemetry.pb.h"

namespace tessera::server {

// Seconds of a step that ranks were busy for.
struct RankBusy {
  double min = 0;
  double median = 0;  // of the rank in the middle, the lower one of two
  double max = 0;
  int slowest = 0;  // the rank of max
};

// Requires: the step has times of ranks.
RankBusy rank_busy(const v1::StepMetrics& step);

}  // namespace tessera::server
