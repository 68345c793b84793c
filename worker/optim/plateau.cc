#include "worker/optim/plateau.h"

#include <algorithm>

namespace tessera {
namespace {

bool is_better(const v1::LrSchedulerKwargs& kwargs, double metric, double best) {
  const double threshold = kwargs.has_threshold() ? kwargs.threshold() : 1e-4;
  const bool more = kwargs.mode() == "max";
  if (kwargs.threshold_mode() == "abs")
    return more ? metric > best + threshold : metric < best - threshold;
  return more ? metric > best * (1.0 + threshold) : metric < best * (1.0 - threshold);
}

void reduce(const v1::LrSchedulerKwargs& kwargs, v1::PlateauState& state) {
  const double factor = kwargs.has_factor() ? kwargs.factor() : 0.1;
  const double eps = kwargs.has_eps() ? kwargs.eps() : 1e-8;
  const double reduced = std::max(state.learning_rate() * factor, kwargs.min_lr());
  if (state.learning_rate() - reduced > eps) state.set_learning_rate(reduced);
}

}  // namespace

v1::PlateauState initial_plateau(const v1::Training& training) {
  v1::PlateauState state;
  state.set_learning_rate(training.learning_rate());
  return state;
}

void observe_metric(const v1::Training& training, double metric, v1::PlateauState& state) {
  const v1::LrSchedulerKwargs& kwargs = training.lr_scheduler_kwargs();
  if (!state.has_best() || is_better(kwargs, metric, state.best())) {
    state.set_best(metric);
    state.set_num_bad(0);
  } else {
    state.set_num_bad(state.num_bad() + 1);
  }
  if (state.cooldown() > 0) {
    state.set_cooldown(state.cooldown() - 1);
    state.set_num_bad(0);
  }
  if (state.num_bad() <= (kwargs.has_patience() ? kwargs.patience() : 10)) return;
  reduce(kwargs, state);
  state.set_cooldown(kwargs.cooldown());
  state.set_num_bad(0);
}

}  // namespace tessera
