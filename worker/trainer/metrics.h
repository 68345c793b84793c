// TRL's metrics, from a rank's microbatches to a step event. Sources: SFTTrainer.compute_loss and
// log in trl/trainer/sft_trainer.py, Trainer._maybe_log_save_evaluate and evaluation_loop in
// transformers/trainer.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/v1/trainer.pb.h"
#include "worker/model/head.h"

namespace tessera {

// Sums over the label tokens of a microbatch.
struct LabelSums {
  double loss = 0;  // the objective's
  double entropy = 0;
  double correct = 0;
  double aux_loss = 0;  // DecoderModel::aux_loss: of all ranks, and no sum
};

// A microbatch's means over its label tokens. Without labels they are 0.
struct LabelMeans {
  double loss = 0;
  double entropy = 0;
  double accuracy = 0;
};
LabelMeans means(const LabelSums& sums, int64_t num_labels);

// Gathers the sums of several microbatches on their device, and reads them once.
class LabelSumsList {
 public:
  static constexpr int kNumSums = 3;  // of a microbatch

  // Adds this rank's part of a microbatch. `loss_sum` is the objective's.
  void add(const at::Tensor& loss_sum, const HeadOutput& head, double aux_loss);
  // This rank's sums as float64 [3 * microbatches], to be summed over ranks.
  at::Tensor flat() const;

  // The sums of all ranks. `values` is flat(), summed over them.
  std::vector<LabelSums> read(const double* values) const;

 private:
  std::vector<at::Tensor> sums_;  // float64 [3]
  std::vector<double> aux_losses_;
};

// Adds a step to the window. `num_labels` and `sums` have a value a microbatch, over all ranks;
// aux_coef is what the auxiliary loss counts in the loss.
void add_step(v1::MetricsWindow& window, const std::vector<int64_t>& num_labels,
              const std::vector<LabelSums>& sums, double aux_coef);
// Sets the metrics that are means over the window. Requires a step in it.
void average(const v1::MetricsWindow& window, v1::StepMetrics& metrics);

}  // namespace tessera
