#include "worker/trainer/evaluation.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "worker/trainer/rollout_pass.h"

namespace tessera {

Evaluator::Evaluator(const Dataset& data, const LoaderOptions& options, const Objective& objective,
                     const Mesh& mesh, const StreamShare& share, at::Device device,
                     std::function<void(int)> make)
    : objective_(objective),
      mesh_(mesh),
      share_(share),
      device_(device),
      data_(data),
      loader_(std::make_unique<Loader>(data_, options)),
      make_(std::move(make)) {}

// Sums of each microbatch, and what is measured of completions before they are compared.
std::vector<MicrobatchSums> Evaluator::run(const TrainedModels& trained, const FrozenModels& frozen,
                                           int step, Reporter& reporter,
                                           v1::MetricsWindow& of_completions) const {
  make_(step);
  std::optional<RolloutPass> pass;
  if (objective_.online() != nullptr) {
    pass.emplace(RolloutPass::Parts{*data_.rollouts(), *loader_, *objective_.online(), mesh_,
                                    share_, device_});
  }
  const Models models = models_of(trained, frozen);
  const auto batch_of = [&](int64_t i) {
    reporter.progress("eval", step);
    const int64_t row = i * loader_->microbatch_rows();
    if (!pass) return share_.of(loader_->microbatch(0, row));
    Batch batch = pass->microbatch(models, /*epoch=*/0, row);
    for (const auto& [name, value] : pass->take_metrics()) add_metric(of_completions, name, value);
    return batch;
  };
  const auto num_labels = [&](int64_t i) {
    return loader_->num_labels(0, i * loader_->microbatch_rows());
  };
  return evaluate_microbatches({objective_, trained, mesh_.world, device_, frozen, num_labels},
                               loader_->microbatches_per_epoch(), batch_of);
}

v1::EvalMetrics Evaluator::evaluate(const TrainedModels& trained, const FrozenModels& frozen,
                                    int step, Reporter& reporter) const {
  const auto begin = std::chrono::steady_clock::now();
  const double aux_coef = trained.policy.model->config().experts.router_aux_loss_coef;
  const int64_t batch_rows = loader_->microbatch_rows();
  v1::MetricsWindow others;
  const std::vector<MicrobatchSums> batches = run(trained, frozen, step, reporter, others);
  double loss = 0, aux_loss = 0;
  v1::EvalMetrics metrics;
  for (int64_t i = 0; i < std::ssize(batches); ++i) {
    // The loss counts by rows, the others by batches.
    const int64_t rows = std::min(batch_rows, data_.size() - i * batch_rows);
    loss += MethodMetrics::microbatch_loss(batches[i]) * static_cast<double>(rows);
    aux_loss += batches[i].aux_loss;
    metrics.set_num_eval_tokens(metrics.num_eval_tokens() + loader_->num_tokens(0, i * batch_rows));
  }
  metrics.set_loss(loss / static_cast<double>(data_.size()) +
                   aux_coef * aux_loss / static_cast<double>(std::ssize(batches)));
  MethodMetrics(objective_, aux_coef).add(batches, *others.mutable_metrics());
  set_means(others.metrics(), *metrics.mutable_metrics());
  metrics.set_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return metrics;
}

}  // namespace tessera
