// TRL's metrics, from a rank's microbatches to a step event. Sources: the trainers' log() in
// trl/trainer, Trainer._maybe_log_save_evaluate and evaluation_loop in transformers/trainer.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/v1/trainer.pb.h"
#include "worker/objectives/objective.h"

namespace tessera {

// What an objective measured of a microbatch, over all ranks.
struct MicrobatchSums {
  struct Pair {
    double sum = 0, count = 0;
  };
  std::vector<Pair> metrics;  // in the order of Objective::metrics()
  double aux_loss = 0;
};

// Gathers the sums of several microbatches on their device, and reads them once.
class MetricSumsList {
 public:
  explicit MetricSumsList(const Objective& objective) : num_metrics_(objective.metrics().size()) {}

  // Adds this rank's part of a microbatch.
  void add(const ObjectiveOutput& output);
  // This rank's sums as float64 [microbatches * metrics * 2], to be summed over ranks.
  at::Tensor flat() const;

  // The sums of all ranks. `values` is flat(), summed over them.
  std::vector<MicrobatchSums> read(const double* values) const;

 private:
  const size_t num_metrics_;
  std::vector<at::Tensor> sums_;  // of a microbatch each
  std::vector<double> aux_losses_;
};

// The metrics of a method, as means over microbatches.
class MethodMetrics {
 public:
  // aux_coef is what the auxiliary loss counts in the loss. `objective` outlives this.
  MethodMetrics(const Objective& objective, double aux_coef)
      : objective_(objective), aux_coef_(aux_coef) {}

  // The loss of a step, the auxiliary one included.
  double step_loss(const std::vector<MicrobatchSums>& microbatches) const;
  // That of one microbatch, without it.
  static double microbatch_loss(const MicrobatchSums& microbatch);
  // Adds the other metrics of each microbatch that has them.
  void add(const std::vector<MicrobatchSums>& microbatches,
           google::protobuf::Map<std::string, v1::MetricSum>& sums) const;

 private:
  const Objective& objective_;
  const double aux_coef_;
};

// Adds a step to the window.
void add_step(v1::MetricsWindow& window, const MethodMetrics& metrics,
              const std::vector<MicrobatchSums>& microbatches);
// Adds a value of a metric that is none of a microbatch; nothing where it is NaN.
void add_metric(v1::MetricsWindow& window, const std::string& name, double value);
// The means of what was added.
void set_means(const google::protobuf::Map<std::string, v1::MetricSum>& sums,
               google::protobuf::Map<std::string, double>& means);

}  // namespace tessera
