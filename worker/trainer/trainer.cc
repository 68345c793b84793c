#include "worker/trainer/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "worker/errors.h"
#include "worker/model/safetensors.h"
#include "worker/optim/gradient_norm.h"
#include "worker/trainer/input.h"

namespace tessera {
namespace {

AdamW::Options adamw_options(const v1::Training& training) {
  return {training.adam_beta1(), training.adam_beta2(), training.adam_epsilon(),
          training.weight_decay()};
}

}  // namespace

Trainer::Trainer(const v1::TrainerInput& input, Collectives& ranks, at::Device device,
                 EventWriter& events, MemoryLedger& ledger, CommandReader& commands)
    : input_(input),
      spec_(input.spec()),
      ranks_(make_timed_collectives(ranks, timer_)),
      device_(device),
      commands_(commands),
      lease_(input),
      reporter_(events, ledger, ranks.rank()),
      checkpointing_(input, *ranks_, reporter_),
      config_(read_model_config(spec_.model().path())),
      objective_(make_objective(spec_)) {
  reporter_.started(checkpointing_.resumed_step());
  train_data_ = read_documents(spec_, /*held_out=*/false, config_.vocab_size, reporter_.data());
  loader_ = std::make_unique<Loader>(
      *train_data_,
      loader_options(spec_, /*held_out=*/false, config_, ranks_->rank(), ranks_->size()));
  if (!spec_.data().eval().empty()) {
    evaluator_.emplace(spec_, config_, *objective_, *ranks_, device_, reporter_);
  }
  epochs_.emplace(*loader_, spec_.training().gradient_accumulation_steps());
  reporter_.progress("load", 0);
  const WeightFiles weights = WeightFiles::open(spec_.model().path());
  trainable_ = build_model(spec_, config_, *ranks_, device_);
  check_weights(*trainable_.model, weights);
  load_weights(trainable_, weights, ranks.rank());
  optimizer_ = std::make_unique<AdamW>(trainable_.unit_pointers(), adamw_options(spec_.training()),
                                       ranks.rank());
}

// Takes up the checkpoint to go on from, if there is one.
void Trainer::resume() {
  Cursor cursor;
  if (auto resumed = checkpointing_.resume(trainable_, *optimizer_)) {
    state_ = std::move(*resumed);
    cursor = epochs_->normal(
        resumed_cursor(*checkpointing_.resume_point(), state_, spec_.training(), *loader_));
  }
  state_.set_epoch(cursor.epoch);
  state_.set_row(cursor.row);
  state_.set_num_rows(loader_->num_rows());
  state_.set_shuffle(loader_->shuffles());
  total_steps_ = epochs_->total_steps(spec_.training(), state_.step(), cursor);
  cadence_.emplace(spec_.training(), total_steps_, evaluator_.has_value());
}

v1::Finished Trainer::run() {
  resume();
  bool stopped = false;
  while (state_.step() < total_steps_ && !stopped) {
    const CommandReader::Pending commands = train_step();
    const Due due = cadence_->after_step(state_.step());
    if (due.save || commands.save_checkpoint) checkpointing_.save(state_, trainable_, *optimizer_);
    if (due.evaluate) evaluator_->evaluate(trainable_, state_.step(), reporter_);
    stopped = commands.stop;
  }
  v1::Finished finished;
  finished.set_step(state_.step());
  finished.set_stopped(stopped);
  if (!stopped) {
    if (evaluator_) evaluator_->evaluate(trainable_, state_.step(), reporter_);
    finished.set_output(checkpointing_.export_model(state_.step(), trainable_));
  }
  reporter_.memory(state_.step(), /*now=*/true);
  return finished;
}

// First row of the step's microbatch `index`.
int64_t Trainer::row_of(int64_t index) const {
  return state_.row() + index * loader_->microbatch_rows();
}

Trainer::StepData Trainer::next_step_data() const {
  StepData data;
  data.num_microbatches = epochs_->microbatches_of_step(state_.row());
  for (int64_t i = 0; i < data.num_microbatches; ++i) {
    data.num_labels += loader_->num_labels(state_.epoch(), row_of(i));
    data.num_tokens += loader_->num_tokens(state_.epoch(), row_of(i));
  }
  return data;
}

// Forward, backward and update. Returns the commands that came.
CommandReader::Pending Trainer::train_step() {
  timer_.begin_step();
  lease_.check();
  const StepData data = next_step_data();
  LabelSums sums = train_microbatches(data);

  timer_.enter(Phase::kOptimizer);
  reporter_.progress("optimizer", state_.step() + 1);
  const CommandReader::Pending commands = reduce(sums);
  const double grad_norm = gradient_norm(trainable_.unit_pointers(), *ranks_);
  check_finite(sums.loss, "loss");
  check_finite(grad_norm, "gradient norm");
  const double rate = Schedule(spec_.training(), total_steps_).learning_rate(state_.step());
  optimizer_->step(rate, clip_scale(grad_norm, spec_.training().max_grad_norm()));
  for (ShardedUnit* unit : trainable_.unit_pointers()) unit->clear_gradient();
  const double epoch = advance(data);
  report_step(sums, data, grad_norm, rate, epoch);
  reporter_.memory(state_.step(), /*now=*/state_.step() == 1);
  return commands;
}

// Forward and backward of the step's microbatches; gradients add up in the units' shards.
LabelSums Trainer::train_microbatches(const StepData& data) {
  const OwnerScope scope(Owner::kActivations);
  const double normalizer = static_cast<double>(std::max<int64_t>(1, data.num_labels));
  LabelSums sums;
  for (int64_t i = 0; i < data.num_microbatches; ++i) {
    timer_.enter(Phase::kData);
    const Batch batch = to_device(loader_->microbatch(state_.epoch(), row_of(i)), device_);
    timer_.enter(Phase::kForward);
    reporter_.progress("forward", state_.step() + 1);
    const at::Tensor hidden_TD = trainable_.model->forward(batch);
    const HeadOutput head = trainable_.model->head(hidden_TD, batch.labels_T,
                                                   objective_->head_request(batch, normalizer));
    const at::Tensor loss_sum = objective_->loss_sum(head, batch);
    timer_.enter(Phase::kBackward);
    reporter_.progress("backward", state_.step() + 1);
    torch::autograd::backward({loss_sum / normalizer}, {});
    trainable_.finish_backward();
    sums.add(loss_sum, head);
  }
  return sums;
}

// One small all-reduce a step: the metrics, and whether any rank was told to stop or save, so that
// all ranks do so after the same step.
CommandReader::Pending Trainer::reduce(LabelSums& sums) {
  const CommandReader::Pending mine = commands_.take();
  at::Tensor values = at::tensor({sums.loss, sums.entropy, sums.correct, mine.stop ? 1.0 : 0.0,
                                  mine.save_checkpoint ? 1.0 : 0.0},
                                 at::TensorOptions(at::kDouble))
                          .to(device_);
  ranks_->all_reduce_sum(values);
  values = values.cpu();
  const double* v = values.const_data_ptr<double>();
  sums = {v[0], v[1], v[2]};
  return {.stop = v[3] > 0, .save_checkpoint = v[4] > 0};
}

// Counts the step and moves the data cursor behind it. Returns the passes over the data so far.
double Trainer::advance(const StepData& data) {
  const Cursor cursor = epochs_->after({state_.epoch(), state_.row()}, data.num_microbatches);
  state_.set_step(state_.step() + 1);
  state_.set_num_tokens(state_.num_tokens() + data.num_tokens);
  state_.set_epoch(cursor.epoch);
  state_.set_row(cursor.row);
  return epochs_->progress(cursor);
}

void Trainer::report_step(const LabelSums& sums, const StepData& data, double grad_norm,
                          double rate, double epoch) {
  const v1::StepTime time = timer_.end_step();
  if (!cadence_->after_step(state_.step()).log) return;
  const double labels = static_cast<double>(std::max<int64_t>(1, data.num_labels));
  v1::StepMetrics metrics;
  metrics.set_step(state_.step());
  metrics.set_total_steps(static_cast<int32_t>(total_steps_));
  metrics.set_loss(sums.loss / labels);
  metrics.set_grad_norm(grad_norm);
  metrics.set_learning_rate(rate);
  metrics.set_num_tokens(state_.num_tokens());
  metrics.set_tokens_per_second(data.num_tokens / std::max(1e-9, time.total_seconds()));
  metrics.set_epoch(epoch);
  metrics.set_entropy(sums.entropy / labels);
  metrics.set_mean_token_accuracy(sums.correct / labels);
  *metrics.mutable_time() = time;
  reporter_.step(metrics);
}

void Trainer::check_finite(double value, const char* what) const {
  if (std::isfinite(value)) return;
  char rate[32];  // not std::to_string, to which 1e-8 is zero
  std::snprintf(rate, sizeof rate, "%g", spec_.training().learning_rate());
  throw UserError("training.learning_rate",
                  std::string("the ") + what + " is " + (std::isnan(value) ? "nan" : "infinite") +
                      " at step " + std::to_string(state_.step() + 1) +
                      " with training.learning_rate = " + rate +
                      "; lower the rate, or check the weights and the data");
}

}  // namespace tessera
