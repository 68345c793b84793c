// Learning-rate schedules that depend on the step alone. Source: transformers/optimization.py
// (get_*_schedule*); docs/training.md has the formulas. reduce_lr_on_plateau is in plateau.h.
#pragma once

#include <cstdint>

#include "tessera/v1/job.pb.h"

namespace tessera {

class Schedule {
 public:
  // Requires a validated `training`.
  Schedule(const v1::Training& training, int64_t total_steps);
  // Rate of step `step`, from 0.
  double learning_rate(int64_t step) const { return training_.learning_rate() * factor(step); }

 private:
  double factor(int64_t step) const;
  double cosine(double num_cycles, double progress) const;
  double cosine_with_min_lr(int64_t step) const;
  double cosine_warmup_with_min_lr(int64_t step) const;
  double polynomial(int64_t step) const;
  double inverse_sqrt(int64_t step) const;
  double warmup_stable_decay(int64_t step) const;
  double num_cycles() const;
  double min_lr_rate() const;

  v1::Training training_;
  v1::LrSchedulerKwargs kwargs_;
  int64_t total_steps_;
  int64_t warmup_steps_;
};

}  // namespace tessera
