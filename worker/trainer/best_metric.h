// Follows metric_for_best_model over evaluations: the best one, and when to give up. Sources:
// Trainer._determine_best_metric in transformers/trainer.py, EarlyStoppingCallback in
// transformers/trainer_callback.py.
#pragma once

#include <string>

#include "tessera/v1/trainer.pb.h"

namespace tessera {

class BestMetric {
 public:
  explicit BestMetric(const v1::Training& training);

  // False: nothing needs a metric.
  bool is_followed() const { return !name_.empty(); }
  // The metric that is followed. Requires is_followed(). Throws UserError where this evaluation has
  // none of that name.
  double value(const v1::EvalMetrics& metrics) const;

  // Counts the evaluations that did not improve on the best so far. True: training shall end.
  bool gives_up(const v1::EvalMetrics& metrics, v1::CheckpointState& state) const;
  // Remembers the evaluation if it is the best so far, and says whether it is.
  bool update(const v1::EvalMetrics& metrics, v1::CheckpointState& state) const;

 private:
  bool is_better(double value, const v1::BestEvaluation& best) const;

  const v1::Training& training_;
  std::string name_;  // as in EvalMetrics
  bool greater_is_better_;
};

}  // namespace tessera
