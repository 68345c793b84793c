// Learning-rate schedules. Source: transformers/optimization.py (get_*_schedule*).
#pragma once

#include <cstdint>

#include "tessera/v1/job.pb.h"

namespace tessera {

class Schedule {
 public:
  Schedule(const v1::Training& training, int64_t total_steps);
  // Rate of step `step`, from 0.
  double learning_rate(int64_t step) const;

 private:
  enum class Kind { kConstant, kLinear, kCosine };
  Kind kind_;
  double base_rate_;
  int64_t warmup_steps_;
  int64_t total_steps_;
};

}  // namespace tessera
