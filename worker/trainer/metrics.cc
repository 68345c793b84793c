#include "worker/trainer/metrics.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <numeric>

namespace tessera {
namespace {

double at_least_one(int64_t count) { return static_cast<double>(std::max<int64_t>(1, count)); }

}  // namespace

LabelMeans means(const LabelSums& sums, int64_t num_labels) {
  const double count = at_least_one(num_labels);
  return {sums.loss / count, sums.entropy / count, sums.correct / count};
}

void LabelSumsList::add(const at::Tensor& loss_sum, const HeadOutput& head, double aux_loss) {
  aux_losses_.push_back(aux_loss);
  sums_.push_back(at::stack({loss_sum.detach().to(at::kDouble), head.entropy_T.sum(at::kDouble),
                             head.correct_T.sum(at::kDouble)}));
}

at::Tensor LabelSumsList::flat() const { return at::cat(sums_); }

std::vector<LabelSums> LabelSumsList::read(const double* values) const {
  std::vector<LabelSums> sums;
  for (const double aux_loss : aux_losses_) {
    sums.push_back({values[0], values[1], values[2], aux_loss});
    values += kNumSums;
  }
  return sums;
}

void add_step(v1::MetricsWindow& window, const std::vector<int64_t>& num_labels,
              const std::vector<LabelSums>& sums, double aux_coef) {
  double loss = 0, aux_loss = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const LabelMeans microbatch = means(sums[i], num_labels[i]);
    loss += sums[i].loss;
    aux_loss += sums[i].aux_loss;
    window.set_entropy(window.entropy() + microbatch.entropy);
    window.set_mean_token_accuracy(window.mean_token_accuracy() + microbatch.accuracy);
  }
  const int64_t labels = std::accumulate(num_labels.begin(), num_labels.end(), int64_t{0});
  window.set_loss(window.loss() + loss / at_least_one(labels) +
                  aux_coef * aux_loss / static_cast<double>(sums.size()));
  if (aux_coef != 0) window.set_aux_loss(window.aux_loss() + aux_loss);
  window.set_steps(window.steps() + 1);
  window.set_microbatches(window.microbatches() + static_cast<int32_t>(sums.size()));
}

void average(const v1::MetricsWindow& window, v1::StepMetrics& metrics) {
  metrics.set_loss(window.loss() / window.steps());
  metrics.set_entropy(window.entropy() / window.microbatches());
  metrics.set_mean_token_accuracy(window.mean_token_accuracy() / window.microbatches());
  if (window.has_aux_loss()) metrics.set_aux_loss(window.aux_loss() / window.microbatches());
}

}  // namespace tessera
