#include "worker/trainer/best_metric.h"

#include <cmath>
#include <string>

#include "proto/spec/method_metrics.h"
#include "worker/errors.h"

namespace tessera {
namespace {

std::string metric_name(const v1::Training& training) {
  std::string name(spec::without_eval_prefix(training.metric_for_best_model()));
  const bool needed = training.load_best_model_at_end() || training.save_strategy() == "best" ||
                      training.early_stopping_patience() > 0 ||
                      training.lr_scheduler_type() == "reduce_lr_on_plateau";
  return name.empty() && needed ? "loss" : name;
}

}  // namespace

BestMetric::BestMetric(const v1::Training& training)
    : training_(training),
      name_(metric_name(training)),
      greater_is_better_(training.has_greater_is_better() ? training.greater_is_better()
                                                          : !name_.ends_with("loss")) {}

double BestMetric::value(const v1::EvalMetrics& metrics) const {
  if (name_ == "loss") return metrics.loss();
  if (const auto found = metrics.metrics().find(name_); found != metrics.metrics().end())
    return found->second;
  throw UserError("training.metric_for_best_model",
                  "training.metric_for_best_model is \"" + training_.metric_for_best_model() +
                      "\", and the evaluation at step " + std::to_string(metrics.step()) +
                      " has nothing to measure it of");
}

bool BestMetric::is_better(double value, const v1::BestEvaluation& best) const {
  if (!best.has_value()) return !std::isnan(value);
  return greater_is_better_ ? value > best.value() : value < best.value();
}

bool BestMetric::gives_up(const v1::EvalMetrics& metrics, v1::CheckpointState& state) const {
  if (training_.early_stopping_patience() == 0) return false;
  const v1::BestEvaluation& best = state.best();
  const bool improved = !best.has_value() || (is_better(value(metrics), best) &&
                                              std::abs(value(metrics) - best.value()) >
                                                  training_.early_stopping_threshold());
  state.set_evaluations_without_improvement(improved ? 0
                                                     : state.evaluations_without_improvement() + 1);
  return state.evaluations_without_improvement() >= training_.early_stopping_patience();
}

bool BestMetric::update(const v1::EvalMetrics& metrics, v1::CheckpointState& state) const {
  if (!is_followed() || !is_better(value(metrics), state.best())) return false;
  state.mutable_best()->set_value(value(metrics));
  state.mutable_best()->set_step(metrics.step());
  return true;
}

}  // namespace tessera
