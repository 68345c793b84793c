#include "worker/trainer/evaluation.h"

#include <algorithm>
#include <chrono>

namespace tessera {

Evaluator::Evaluator(const Dataset& data, const LoaderOptions& options, const Objective& objective,
                     const Mesh& mesh, const StreamShare& share, at::Device device)
    : objective_(objective),
      mesh_(mesh),
      share_(share),
      device_(device),
      data_(data),
      loader_(std::make_unique<Loader>(data_, options)) {}

v1::EvalMetrics Evaluator::evaluate(TrainableModel& trainable, const FrozenModels& frozen, int step,
                                    Reporter& reporter) const {
  const auto begin = std::chrono::steady_clock::now();
  const double aux_coef = trainable.model->config().experts.router_aux_loss_coef;
  const int64_t batch_rows = loader_->microbatch_rows();
  const int64_t num_batches = loader_->microbatches_per_epoch();
  const std::vector<MicrobatchSums> batches = evaluate_microbatches(
      {objective_, trainable, mesh_.world, device_, frozen}, num_batches, [&](int64_t i) {
        reporter.progress("eval", step);
        return share_.of(loader_->microbatch(0, i * batch_rows));
      });
  double loss = 0, aux_loss = 0;
  v1::EvalMetrics metrics;
  for (int64_t i = 0; i < num_batches; ++i) {
    // The loss counts by rows, the others by batches.
    const int64_t rows = std::min(batch_rows, data_.size() - i * batch_rows);
    loss += MethodMetrics::microbatch_loss(batches[i]) * static_cast<double>(rows);
    aux_loss += batches[i].aux_loss;
    metrics.set_num_eval_tokens(metrics.num_eval_tokens() + loader_->num_tokens(0, i * batch_rows));
  }
  metrics.set_loss(loss / static_cast<double>(data_.size()) +
                   aux_coef * aux_loss / static_cast<double>(num_batches));
  v1::MetricsWindow others;
  MethodMetrics(objective_, aux_coef).add(batches, *others.mutable_metrics());
  set_means(others.metrics(), *metrics.mutable_metrics());
  metrics.set_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return metrics;
}

}  // namespace tessera
