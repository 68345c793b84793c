// The schedule that follows a metric: lr_scheduler_type reduce_lr_on_plateau.
#pragma once

#include "tessera/v1/job.pb.h"
#include "tessera/v1/trainer.pb.h"

namespace tessera {

// The learning rate before any evaluation.
v1::PlateauState initial_plateau(const v1::Training& training);

// Reduces state.learning_rate where `metric` has not improved for longer than `patience`
// evaluations. Source: ReduceLROnPlateau in torch/optim/lr_scheduler.py.
void observe_metric(const v1::Training& training, double metric, v1::PlateauState& state);

}  // namespace tessera
