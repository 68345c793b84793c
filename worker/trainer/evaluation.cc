#include "worker/trainer/evaluation.h"

#include <algorithm>
#include <chrono>

#include "worker/trainer/input.h"
#include "worker/trainer/step.h"

namespace tessera {

Evaluator::Evaluator(const v1::JobSpec& spec, const ModelConfig& config, const Objective& objective,
                     Collectives& ranks, at::Device device, Reporter& reporter)
    : objective_(objective),
      ranks_(ranks),
      device_(device),
      data_(read_documents(spec, /*held_out=*/true, config.vocab_size, reporter.data())),
      loader_(std::make_unique<Loader>(
          *data_, loader_options(spec, /*held_out=*/true, config, ranks.rank(), ranks.size()))) {}

v1::EvalMetrics Evaluator::evaluate(TrainableModel& trainable, int step, Reporter& reporter) const {
  const auto begin = std::chrono::steady_clock::now();
  const double aux_coef = trainable.model->config().experts.router_aux_loss_coef;
  const int64_t batch_rows = loader_->microbatch_rows();
  const int64_t num_batches = loader_->microbatches_per_epoch();
  const std::vector<LabelSums> batches =
      evaluate_microbatches({objective_, trainable, ranks_, device_}, num_batches, [&](int64_t i) {
        reporter.progress("eval", step);
        return loader_->microbatch(0, i * batch_rows);
      });
  double loss = 0, entropy = 0, accuracy = 0, aux_loss = 0;
  v1::EvalMetrics metrics;
  for (int64_t i = 0; i < num_batches; ++i) {
    const LabelMeans batch = means(batches[i], loader_->num_labels(0, i * batch_rows));
    // The loss counts by rows, the others by batches.
    const int64_t rows = std::min(batch_rows, data_->size() - i * batch_rows);
    loss += batch.loss * static_cast<double>(rows);
    entropy += batch.entropy;
    accuracy += batch.accuracy;
    aux_loss += batches[i].aux_loss;
    metrics.set_num_eval_tokens(metrics.num_eval_tokens() + loader_->num_tokens(0, i * batch_rows));
  }
  metrics.set_loss(loss / static_cast<double>(data_->size()) +
                   aux_coef * aux_loss / static_cast<double>(num_batches));
  metrics.set_entropy(entropy / static_cast<double>(num_batches));
  metrics.set_mean_token_accuracy(accuracy / static_cast<double>(num_batches));
  metrics.set_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return metrics;
}

}  // namespace tessera
