#include "worker/trainer/cadence.h"

namespace tessera {

Cadence::Cadence(const v1::Training& training, int64_t total_steps, bool has_eval)
    : training_(training), total_steps_(total_steps), has_eval_(has_eval) {}

Due Cadence::after_step(int64_t step) const {
  Due due;
  due.log = step % training_.logging_steps() == 0 || step == total_steps_;
  due.evaluate = has_eval_ && training_.eval_strategy() == "steps" &&
                 step % training_.eval_steps() == 0 && step < total_steps_;
  due.save = training_.save_strategy() == "steps" && step % training_.save_steps() == 0;
  return due;
}

}  // namespace tessera
