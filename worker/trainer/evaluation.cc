#include "worker/trainer/evaluation.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>

#include "worker/memory/ledger.h"
#include "worker/trainer/input.h"
#include "worker/trainer/metrics.h"

namespace tessera {

Evaluator::Evaluator(const v1::JobSpec& spec, const ModelConfig& config, const Objective& objective,
                     Collectives& ranks, at::Device device, Reporter& reporter)
    : objective_(objective),
      ranks_(ranks),
      device_(device),
      data_(read_documents(spec, /*held_out=*/true, config.vocab_size, reporter.data())) {
  loader_ = std::make_unique<Loader>(
      *data_, loader_options(spec, /*held_out=*/true, config, ranks.rank(), ranks.size()));
}

v1::EvalMetrics Evaluator::evaluate(TrainableModel& trainable, int step, Reporter& reporter) const {
  const auto begin = std::chrono::steady_clock::now();
  const c10::AutoGradMode no_grad(false);
  const OwnerScope scope(Owner::kActivations);
  LabelSums sums;
  int64_t num_labels = 0, num_tokens = 0;
  for (int64_t i = 0; i < loader_->microbatches_per_epoch(); ++i) {
    reporter.progress("eval", step);
    const int64_t row = i * loader_->microbatch_rows();
    const Batch batch = to_device(loader_->microbatch(0, row), device_);
    const at::Tensor hidden_TD = trainable.model->forward(batch);
    const HeadOutput head = trainable.model->head(hidden_TD, batch.labels_T,
                                                  objective_.head_request(batch, /*normalizer=*/1));
    sums.add(objective_.loss_sum(head, batch), head);
    num_labels += loader_->num_labels(0, row);
    num_tokens += loader_->num_tokens(0, row);
  }
  trainable.finish_backward();
  at::Tensor values =
      at::tensor({sums.loss, sums.entropy, sums.correct}, at::TensorOptions(at::kDouble))
          .to(device_);
  ranks_.all_reduce_sum(values);
  values = values.cpu();
  const double* v = values.const_data_ptr<double>();
  const double labels = static_cast<double>(std::max<int64_t>(1, num_labels));
  v1::EvalMetrics metrics;
  metrics.set_step(step);
  metrics.set_loss(v[0] / labels);
  metrics.set_entropy(v[1] / labels);
  metrics.set_mean_token_accuracy(v[2] / labels);
  metrics.set_num_tokens(num_tokens);
  metrics.set_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  reporter.evaluated(metrics);
  return metrics;
}

}  // namespace tessera
