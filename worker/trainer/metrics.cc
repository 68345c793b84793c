#include "worker/trainer/metrics.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

void add_value(google::protobuf::Map<std::string, v1::MetricSum>& sums, const std::string& name,
               double value) {
  v1::MetricSum& sum = sums[name];
  sum.set_sum(sum.sum() + value);
  sum.set_count(sum.count() + 1);
}

double quotient(const MicrobatchSums::Pair& pair) { return pair.sum / std::max(1.0, pair.count); }

}  // namespace

void MetricSumsList::add(const ObjectiveOutput& output) {
  sums_.push_back(output.sums.flatten());
  aux_losses_.push_back(output.aux_loss);
}

at::Tensor MetricSumsList::flat() const { return at::cat(sums_); }

std::vector<MicrobatchSums> MetricSumsList::read(const double* values) const {
  std::vector<MicrobatchSums> all;
  for (const double aux_loss : aux_losses_) {
    MicrobatchSums& sums = all.emplace_back();
    sums.aux_loss = aux_loss;
    for (size_t i = 0; i < num_metrics_; ++i, values += 2)
      sums.metrics.push_back({values[0], values[1]});
  }
  return all;
}

double MethodMetrics::microbatch_loss(const MicrobatchSums& microbatch) {
  return quotient(microbatch.metrics.front());
}

double MethodMetrics::step_loss(const std::vector<MicrobatchSums>& microbatches) const {
  const auto num_microbatches = static_cast<double>(microbatches.size());
  MicrobatchSums::Pair all;
  double of_means = 0, aux_loss = 0;
  for (const MicrobatchSums& microbatch : microbatches) {
    all.sum += microbatch.metrics.front().sum;
    all.count += microbatch.metrics.front().count;
    of_means += microbatch_loss(microbatch);
    aux_loss += microbatch.aux_loss;
  }
  const bool by_labels = objective_.mean() == Objective::Mean::kLabels;
  return (by_labels ? quotient(all) : of_means / num_microbatches) +
         aux_coef_ * aux_loss / num_microbatches;
}

void MethodMetrics::add(const std::vector<MicrobatchSums>& microbatches,
                        google::protobuf::Map<std::string, v1::MetricSum>& sums) const {
  for (const MicrobatchSums& microbatch : microbatches) {
    for (size_t i = 1; i < microbatch.metrics.size(); ++i) {
      const spec::MethodMetric& metric = objective_.metrics()[i];
      if (metric.may_lack && microbatch.metrics[i].count == 0) continue;
      add_value(sums, metric.name, quotient(microbatch.metrics[i]));
    }
    if (aux_coef_ != 0) add_value(sums, spec::kAuxLossMetric, microbatch.aux_loss);
  }
}

void add_step(v1::MetricsWindow& window, const MethodMetrics& metrics,
              const std::vector<MicrobatchSums>& microbatches) {
  window.set_steps(window.steps() + 1);
  window.set_loss(window.loss() + metrics.step_loss(microbatches));
  metrics.add(microbatches, *window.mutable_metrics());
}

void add_metric(v1::MetricsWindow& window, const std::string& name, double value) {
  if (!std::isnan(value)) add_value(*window.mutable_metrics(), name, value);
}

void set_means(const google::protobuf::Map<std::string, v1::MetricSum>& sums,
               google::protobuf::Map<std::string, double>& means) {
  means.clear();
  for (const auto& [name, sum] : sums) means[name] = sum.sum() / sum.count();
}

}  // namespace tessera
