#include "worker/trainer/cadence.h"

#include <cmath>

namespace tessera {
namespace {

// Below 1, a share of all steps.
int64_t count_steps(double steps, int64_t total_steps) {
  return static_cast<int64_t>(steps < 1 ? std::ceil(static_cast<double>(total_steps) * steps)
                                        : steps);
}

}  // namespace

Cadence::Cadence(const v1::Training& training, int64_t total_steps)
    : training_(training),
      total_steps_(total_steps),
      logging_steps_(count_steps(training.logging_steps(), total_steps)),
      eval_steps_(training.has_eval_steps() ? count_steps(training.eval_steps(), total_steps)
                                            : logging_steps_),
      save_steps_(count_steps(training.save_steps(), total_steps)) {}

Due Cadence::after_step(int64_t step) const {
  const bool last = step >= total_steps_;
  Due due;
  due.log = (training_.logging_strategy() == "steps" && step % logging_steps_ == 0) ||
            (training_.logging_first_step() && step == 1);
  due.evaluate = training_.eval_strategy() == "steps" && (step % eval_steps_ == 0 || last) &&
                 training_.eval_delay() <= static_cast<double>(step);
  due.save = training_.save_strategy() == "steps" && (step % save_steps_ == 0 || last);
  return due;
}

Due Cadence::after_epoch(double epoch) const {
  Due due;
  due.log = training_.logging_strategy() == "epoch";
  due.evaluate = training_.eval_strategy() == "epoch" && training_.eval_delay() <= epoch;
  due.save = training_.save_strategy() == "epoch";
  return due;
}

}  // namespace tessera
