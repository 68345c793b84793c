#include "worker/trainer/best_metric.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace tessera {
namespace {

constexpr std::string_view kPrefix = "eval_";

std::string metric_name(const v1::Training& training) {
  std::string name = training.metric_for_best_model();
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
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
                                                          : name_ != "loss") {}

double BestMetric::value(const v1::EvalMetrics& metrics) const {
  if (name_ == "loss") return metrics.loss();
  if (name_ == "entropy") return metrics.entropy();
  if (name_ == "mean_token_accuracy") return metrics.mean_token_accuracy();
  throw std::logic_error("no such metric of an evaluation: " + name_);
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
