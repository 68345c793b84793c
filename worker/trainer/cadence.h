// Which steps and epochs are logged, evaluated and saved. Source: DefaultFlowCallback in
// transformers/trainer_callback.py.
#pragma once

#include <cstdint>

#include "tessera/v1/job.pb.h"

namespace tessera {

// What follows a step or an epoch, in this order.
struct Due {
  bool log = false;
  bool evaluate = false;
  bool save = false;
};

class Cadence {
 public:
  Cadence(const v1::Training& training, int64_t total_steps);

  // After step `step`, from 1.
  Due after_step(int64_t step) const;
  // After a pass over the data, and where training ends within one. `epoch`: passes so far.
  Due after_epoch(double epoch) const;

 private:
  const v1::Training& training_;
  int64_t total_steps_;
  int64_t logging_steps_, eval_steps_, save_steps_;
};

}  // namespace tessera
