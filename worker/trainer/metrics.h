// Metrics of training, from a rank's microbatches to what is logged.
#pragma once

#include <cstdint>

#include "tessera/v1/telemetry.pb.h"
#include "worker/batch.h"
#include "worker/model/head.h"

namespace tessera {

// Sums over label tokens.
struct LabelSums {
  double loss = 0;
  double entropy = 0;
  double correct = 0;

  // Adds one microbatch. `loss_sum` is the objective's.
  void add(const at::Tensor& loss_sum, const HeadOutput& head);
};

}  // namespace tessera
