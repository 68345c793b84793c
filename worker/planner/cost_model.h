// Predicted seconds of a step. All that ranks one plan before another is in this file.
#pragma once

#include "tessera/v1/plan.pb.h"
#include "worker/planner/device_rates.h"

namespace tessera {

// Of a step of one rank that computes in `dtype` (float32, bfloat16). 0 where the rates are not
// known. Matrix products and the bytes of all operators are added, as operators run one after the
// other and are bound by one or the other; links are hidden behind compute as far as prefetching
// one block can; copies to the host run on streams of their own on a GPU, and on the cores on a
// CPU.
double step_seconds(const v1::StepCost& cost, const DeviceRates& rates, const std::string& dtype);

}  // namespace tessera
