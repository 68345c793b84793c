#include "worker/trainer/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "worker/checkpoint/checkpoint.h"
#include "worker/errors.h"
#include "worker/model/safetensors.h"
#include "worker/optim/gradient_norm.h"
#include "worker/trainer/input.h"

namespace tessera {
namespace {

constexpr int64_t kMaxExportFileBytes = int64_t{5} << 30;
constexpr auto kMemoryInterval = std::chrono::seconds(1);

// Each rank tokenises on its share of the machine's cores.
std::unique_ptr<Dataset> read_documents(const v1::JobSpec& spec, bool held_out,
                                        int64_t vocab_size) {
  DatasetOptions options = dataset_options(spec, held_out, vocab_size);
  options.num_threads = at::get_num_threads();
  return load_dataset(options);
}

LoaderOptions loader_options(const v1::JobSpec& spec, const ModelConfig& config,
                             const Collectives& ranks) {
  const v1::Training& training = spec.training();
  LoaderOptions options;
  options.batch_rows = training.per_device_train_batch_size();
  options.split_batches = training.accelerator_config().split_batches();
  options.rank = ranks.rank();
  options.world_size = ranks.size();
  options.shuffle = training.has_train_sampling_strategy()
                        ? training.train_sampling_strategy() == "random"
                        : training.shuffle_dataset();
  options.seed = training.seed();
  options.drop_last = training.dataloader_drop_last();
  options.pad_to_multiple_of = spec.method().sft().pad_to_multiple_of();
  options.pad_token_id = std::max<int64_t>(0, config.pad_token_id);
  return options;
}

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
      events_(events),
      ledger_(ledger),
      commands_(commands),
      lease_(input),
      config_(read_model_config(spec_.model().path())),
      objective_(make_objective(spec_.method())) {
  if (input_.attempt() > 1) {
    resume_from_ = find_latest_checkpoint(spec_.training().output_dir(), input_.job_id());
  }
  v1::TrainerEvent started;
  started.mutable_started()->set_pid(getpid());
  if (resume_from_) started.mutable_started()->set_resumed_step(resume_from_->step);
  events_.write(std::move(started));
  train_data_ = read_documents(spec_, /*held_out=*/false, config_.vocab_size);
  if (!spec_.data().eval().empty()) {
    eval_data_ = read_documents(spec_, /*held_out=*/true, config_.vocab_size);
  }
  loader_ = std::make_unique<Loader>(*train_data_, loader_options(spec_, config_, ranks));
  total_steps_ = count_total_steps();
  events_.progress("load", 0);
  const WeightFiles weights = WeightFiles::open(spec_.model().path());
  trainable_ = build_model(spec_, config_, *ranks_, device_);
  check_weights(*trainable_.model, weights);
  load_weights(trainable_, weights, ranks.rank());
  optimizer_ = std::make_unique<AdamW>(trainable_.unit_pointers(), adamw_options(spec_.training()),
                                       ranks.rank());
}

int64_t Trainer::count_total_steps() const {
  if (spec_.training().max_steps() > 0) return spec_.training().max_steps();
  const int64_t accumulation = spec_.training().gradient_accumulation_steps();
  const int64_t microbatches = loader_->microbatches_per_epoch();
  const int64_t steps_per_epoch = (microbatches + accumulation - 1) / accumulation;
  return static_cast<int64_t>(std::ceil(spec_.training().num_train_epochs() * steps_per_epoch));
}

v1::Finished Trainer::run() {
  if (resume_from_) resume();
  const v1::Training& training = spec_.training();
  while (step_ < total_steps_ && !stopped_) {
    train_step();
    const bool due = training.save_strategy() == "steps" && step_ % training.save_steps() == 0;
    if (due && saved_step_ != step_) save();
    if (eval_data_ && training.eval_strategy() == "steps" && step_ % training.eval_steps() == 0 &&
        step_ < total_steps_) {
      evaluate();
    }
  }
  v1::Finished finished;
  finished.set_step(step_);
  finished.set_stopped(stopped_);
  if (!stopped_) {
    if (eval_data_) evaluate();
    finished.set_output(export_model());
  }
  emit_memory(/*due=*/true);
  return finished;
}

void Trainer::train_step() {
  timer_.begin_step();
  lease_.check();
  const v1::Training& training = spec_.training();
  const int64_t per_epoch = loader_->microbatches_per_epoch();
  const int64_t count =
      std::min<int64_t>(training.gradient_accumulation_steps(), per_epoch - cursor_.microbatch);
  int64_t num_labels = 0, num_tokens = 0;
  for (int64_t i = 0; i < count; ++i) {
    num_labels += loader_->num_labels(cursor_.epoch, cursor_.microbatch + i);
    num_tokens += loader_->num_tokens(cursor_.epoch, cursor_.microbatch + i);
  }
  Sums sums = train_microbatches(count, num_labels);

  timer_.enter(Phase::kOptimizer);
  events_.progress("optimizer", step_ + 1);
  const std::vector<ShardedUnit*> units = trainable_.unit_pointers();
  reduce(sums, /*commands=*/true);
  const double grad_norm = gradient_norm(units, *ranks_);
  check_finite(sums.loss, "loss");
  check_finite(grad_norm, "gradient norm");
  const double rate = Schedule(training, total_steps_).learning_rate(step_);
  optimizer_->step(rate, clip_scale(grad_norm, training.max_grad_norm()));
  for (ShardedUnit* unit : units) unit->clear_gradient();

  ++step_;
  num_tokens_ += num_tokens;
  cursor_.microbatch += count;
  const double epoch = cursor_.epoch + static_cast<double>(cursor_.microbatch) / per_epoch;
  if (cursor_.microbatch == per_epoch) cursor_ = {cursor_.epoch + 1, 0};
  emit_step(sums, num_labels, num_tokens, grad_norm, rate, epoch);
  emit_memory(step_ == 1);
  stopped_ = sums.stop;
  if (sums.save) save();
}

// Forward and backward of `count` microbatches from the cursor; gradients add up in the units'
// shards.
Trainer::Sums Trainer::train_microbatches(int64_t count, int64_t num_labels) {
  const OwnerScope scope(Owner::kActivations);
  const double normalizer = static_cast<double>(std::max<int64_t>(1, num_labels));
  Sums sums;
  for (int64_t i = 0; i < count; ++i) {
    timer_.enter(Phase::kData);
    const Batch batch = to_device(loader_->microbatch(cursor_.epoch, cursor_.microbatch + i));
    timer_.enter(Phase::kForward);
    events_.progress("forward", step_ + 1);
    const at::Tensor hidden_TD = trainable_.model->forward(batch);
    const HeadOutput head = trainable_.model->head(hidden_TD, batch.labels_T,
                                                   objective_->known_gradient(batch, normalizer));
    const at::Tensor loss = objective_->loss_sum(head, batch);
    timer_.enter(Phase::kBackward);
    events_.progress("backward", step_ + 1);
    torch::autograd::backward({loss / normalizer}, {});
    trainable_.finish_backward();
    sums.loss += loss.item<double>();
    sums.entropy += head.entropy_T.sum(at::kDouble).item<double>();
    sums.correct += head.correct_T.sum(at::kDouble).item<double>();
  }
  return sums;
}

// One small all-reduce a step: the metrics, and whether any rank was told to stop or save, so that
// all ranks do so after the same step.
void Trainer::reduce(Sums& sums, bool commands) {
  CommandReader::Pending pending;
  if (commands) pending = commands_.take();
  at::Tensor values = at::tensor({sums.loss, sums.entropy, sums.correct, pending.stop ? 1.0 : 0.0,
                                  pending.save_checkpoint ? 1.0 : 0.0},
                                 at::TensorOptions(at::kDouble))
                          .to(device_);
  ranks_->all_reduce_sum(values);
  values = values.cpu();
  const double* v = values.const_data_ptr<double>();
  sums = {v[0], v[1], v[2], v[3] > 0, v[4] > 0};
}

void Trainer::check_finite(double value, const char* what) const {
  if (std::isfinite(value)) return;
  char rate[32];  // not std::to_string, to which 1e-8 is zero
  std::snprintf(rate, sizeof rate, "%g", spec_.training().learning_rate());
  throw UserError("training.learning_rate",
                  std::string("the ") + what + " is " + (std::isnan(value) ? "nan" : "infinite") +
                      " at step " + std::to_string(step_ + 1) + " with training.learning_rate = " +
                      rate + "; lower the rate, or check the weights and the data");
}

Batch Trainer::to_device(Batch batch) const {
  if (device_.is_cpu()) return batch;
  batch.tokens_T = batch.tokens_T.to(device_);
  batch.labels_T = batch.labels_T.to(device_);
  batch.documents.positions_T = batch.documents.positions_T.to(device_);
  return batch;
}

void Trainer::emit_step(const Sums& sums, int64_t num_labels, int64_t num_tokens, double grad_norm,
                        double rate, double epoch) {
  const v1::StepTime time = timer_.end_step();
  const bool due = step_ % spec_.training().logging_steps() == 0 || step_ == total_steps_;
  if (ranks_->rank() != 0 || !due) return;
  const double labels = static_cast<double>(std::max<int64_t>(1, num_labels));
  v1::TrainerEvent event;
  v1::StepMetrics& metrics = *event.mutable_step();
  metrics.set_step(step_);
  metrics.set_total_steps(static_cast<int32_t>(total_steps_));
  metrics.set_loss(sums.loss / labels);
  metrics.set_grad_norm(grad_norm);
  metrics.set_learning_rate(rate);
  metrics.set_num_tokens(num_tokens_);
  metrics.set_tokens_per_second(num_tokens / std::max(1e-9, time.total_seconds()));
  metrics.set_epoch(epoch);
  metrics.set_entropy(sums.entropy / labels);
  metrics.set_mean_token_accuracy(sums.correct / labels);
  *metrics.mutable_time() = time;
  events_.write(std::move(event));
}

void Trainer::emit_memory(bool due) {
  const auto now = std::chrono::steady_clock::now();
  if (!due && now - last_memory_ < kMemoryInterval) return;
  last_memory_ = now;
  const MemoryLedger::Snapshot snapshot = ledger_.snapshot();
  const ProcessMemory process = process_memory();
  v1::TrainerEvent event;
  v1::MemorySnapshot& memory = *event.mutable_memory();
  memory.set_rank(ranks_->rank());
  memory.set_step(step_);
  memory.set_current_bytes(snapshot.current_bytes);
  memory.set_peak_bytes(snapshot.peak_bytes);
  memory.set_rss_bytes(process.rss_bytes);
  memory.set_peak_rss_bytes(process.peak_rss_bytes);
  for (int i = 0; i < kNumOwners; ++i) {
    if (snapshot.peak_by_owner[i] == 0) continue;
    v1::OwnerBytes& owner = *memory.add_owners();
    owner.set_owner(std::string(owner_name(static_cast<Owner>(i))));
    owner.set_current_bytes(snapshot.current_by_owner[i]);
    owner.set_at_peak_bytes(snapshot.at_peak_by_owner[i]);
    owner.set_peak_bytes(snapshot.peak_by_owner[i]);
  }
  events_.write(std::move(event));
}

void Trainer::evaluate() {
  const auto begin = std::chrono::steady_clock::now();
  const c10::AutoGradMode no_grad(false);
  const OwnerScope scope(Owner::kActivations);
  LoaderOptions options = loader_options(spec_, config_, *ranks_);
  options.batch_rows = spec_.training().per_device_eval_batch_size();
  options.split_batches = false;
  options.shuffle = false;
  options.drop_last = false;
  const Loader loader(*eval_data_, options);
  Sums sums;
  int64_t num_labels = 0, num_tokens = 0;
  for (int64_t i = 0; i < loader.microbatches_per_epoch(); ++i) {
    events_.progress("eval", step_);
    const Batch batch = to_device(loader.microbatch(0, i));
    const HeadOutput head =
        trainable_.model->head(trainable_.model->forward(batch), batch.labels_T);
    sums.loss += objective_->loss_sum(head, batch).item<double>();
    sums.entropy += head.entropy_T.sum(at::kDouble).item<double>();
    sums.correct += head.correct_T.sum(at::kDouble).item<double>();
    num_labels += loader.num_labels(0, i);
    num_tokens += loader.num_tokens(0, i);
  }
  trainable_.finish_backward();
  reduce(sums, /*commands=*/false);
  if (ranks_->rank() != 0) return;
  const double labels = static_cast<double>(std::max<int64_t>(1, num_labels));
  v1::TrainerEvent event;
  v1::EvalMetrics& metrics = *event.mutable_eval();
  metrics.set_step(step_);
  metrics.set_loss(sums.loss / labels);
  metrics.set_entropy(sums.entropy / labels);
  metrics.set_mean_token_accuracy(sums.correct / labels);
  metrics.set_num_tokens(num_tokens);
  metrics.set_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  events_.write(std::move(event));
}

std::vector<FlatShard> Trainer::state_vectors() const {
  std::vector<FlatShard> vectors = optimizer_->state();
  for (const auto& unit : trainable_.units) {
    vectors.push_back(
        {unit->layout().name + "/parameter", unit->shard(), unit->layout().used_numel});
  }
  return vectors;
}

void Trainer::save() {
  const auto begin = std::chrono::steady_clock::now();
  events_.progress("save", step_);
  lease_.check();
  v1::CheckpointState state;
  state.set_job_id(input_.job_id());
  state.set_step(step_);
  state.set_world_size(ranks_->size());
  state.set_epoch(cursor_.epoch);
  state.set_microbatch(cursor_.microbatch);
  state.set_num_tokens(num_tokens_);
  state.set_seed(spec_.training().seed());
  const SavedCheckpoint saved =
      save_checkpoint(spec_.training().output_dir(), state, state_vectors(),
                      spec_.training().save_total_limit(), *ranks_);
  saved_step_ = step_;
  if (ranks_->rank() != 0) return;
  v1::TrainerEvent event;
  event.mutable_checkpoint()->set_step(step_);
  event.mutable_checkpoint()->set_path(saved.path.string());
  event.mutable_checkpoint()->set_bytes(saved.bytes);
  event.mutable_checkpoint()->set_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  events_.write(std::move(event));
}

void Trainer::resume() {
  const v1::CheckpointState state = load_checkpoint(resume_from_->path, state_vectors(), *ranks_);
  step_ = saved_step_ = state.step();
  num_tokens_ = state.num_tokens();
  cursor_ = {state.epoch(), state.microbatch()};
  optimizer_->set_step(step_);
}

std::string Trainer::export_model() {
  events_.progress("save", step_);
  lease_.check();
  const std::filesystem::path final_dir =
      std::filesystem::path(spec_.training().output_dir()) / "final";
  std::vector<FlatLayout> layouts;
  std::vector<at::Tensor> shards;
  for (const auto& unit : trainable_.units) {
    layouts.push_back(unit->layout());
    shards.push_back(unit->shard());
  }
  const at::ScalarType dtype = spec_.model().dtype() == "bfloat16" ? at::kBFloat16 : at::kFloat;
  export_hugging_face(final_dir, spec_.model().path(), tokenizer_directory(spec_), layouts, shards,
                      dtype, kMaxExportFileBytes, *ranks_);
  return final_dir.string();
}

}  // namespace tessera
