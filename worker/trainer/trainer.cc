#include "worker/trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "proto/spec/online_relations.h"
#include "worker/errors.h"
#include "worker/generate/sampler.h"
#include "worker/model/safetensors.h"
#include "worker/model/stored_weights.h"
#include "worker/parallel/recorded_collectives.h"
#include "worker/trainer/input.h"
#include "worker/trainer/value_model.h"

namespace tessera {
namespace {

std::string rate_text(const v1::JobSpec& spec) {
  char rate[32];  // not std::to_string, to which 1e-8 is zero
  std::snprintf(rate, sizeof rate, "%g", spec.training().learning_rate());
  return std::string(" with training.learning_rate = ") + rate;
}

}  // namespace

Trainer::Trainer(const v1::TrainerInput& input, const Mesh& mesh, at::Device device,
                 EventWriter& events, MemoryLedger& ledger, CommandReader& commands,
                 FlightRecorder& recorder)
    : input_(input),
      spec_(input.spec()),
      trace_(std::filesystem::path(spec_.training().output_dir()) / "traces",
             {spec_.training().profile_steps().begin(), spec_.training().profile_steps().end()},
             mesh.world.rank(), device, ledger),
      recorder_(recorder),
      mesh_(recorded(mesh, recorder).wrapped([this](Collectives& group) {
        return std::shared_ptr(make_timed_collectives(group, timer_));
      })),
      device_(device),
      commands_(commands),
      lease_(input),
      reporter_(events, ledger, recorder, device, mesh.world.rank()),
      checkpointing_(input, mesh_, reporter_),
      config_(read_model_config(spec_.model().path())),
      share_(spec_, config_, mesh_),
      objective_(make_objective(spec_, mesh_.data)),
      reference_options_(reference_options(spec_.method())),
      steps_of_rate_(spec::steps_of_rate(spec_)),
      best_metric_(spec_.training()) {
  reporter_.started(checkpointing_.resumed_step());
  if (mesh_.world.rank() == 0 && spec_.training().report_to() == "tensorboard") {
    reporter_.report_to(std::make_unique<TensorBoardWriter>(logging_directory(input_),
                                                            checkpointing_.resumed_step()));
  }
  if (spec_.method().has_reward()) config_.score_pad_token_id = score_padding(spec_, config_);
  read_data();
  build_models();
  loader_ = std::make_unique<Loader>(*train_data_, loader_options_of(/*held_out=*/false));
  if (objective_->online() != nullptr) {
    rollouts_.emplace(RolloutPass::Parts{*train_data_->rollouts(), *loader_, *objective_->online(),
                                         mesh_, share_, device_});
  }
  make_completions();
  make_evaluator();
  epochs_.emplace(*loader_, spec::step_plan(spec_).num_microbatches);
  optimizer_ = make_optimizer(spec_, trained(), mesh_.shard.rank());
  step_.emplace(
      TrainStep::Parts{spec_, *objective_, trained(), *optimizer_, mesh_, device_, frozen()},
      [this](Phase phase) { enter(phase); });
}

// `live`: set where it is made here.
std::unique_ptr<Dataset> Trainer::read_data(bool held_out, LiveRollouts*& live) {
  if (!spec::makes_completions(spec_, held_out))
    return read_documents(spec_, held_out, config_.vocab_size, reporter_.data());
  auto prompts = read_prompts(spec_, held_out, config_.vocab_size, reporter_.data());
  live = prompts.get();
  return prompts;
}

void Trainer::make_completions() {
  if (live_ == nullptr) return;
  maker_.emplace(
      LiveCompletions::Parts{.input = input_,
                             .training = *live_,
                             .held_out = held_out_,
                             .policy = trainable_,
                             .teacher = teacher_.get(),
                             .reward_models = reward_models_.get(),
                             .mesh = mesh_,
                             .device = device_,
                             .reporter = reporter_,
                             .on_phase = [this](Phase phase) { enter(phase); },
                             .on_judged = [this](auto duration) { timer_.add_judging(duration); }});
}

void Trainer::make_evaluator() {
  if (eval_data_ == nullptr) return;
  const LoaderOptions options = loader_options_of(/*held_out=*/true);
  if (held_out_ == nullptr) {
    evaluator_.emplace(*eval_data_, options, *objective_, mesh_, share_, device_);
    return;
  }
  eval_spec_ = spec::evaluation_job(spec_);
  eval_objective_ = make_objective(eval_spec_, mesh_.data);
  evaluator_.emplace(*eval_data_, options, *eval_objective_, mesh_, share_, device_,
                     [this](int step) { maker_->make_held_out(step); });
}

void Trainer::read_data() {
  train_data_ = read_data(/*held_out=*/false, live_);
  if (!spec_.data().eval().empty()) eval_data_ = read_data(/*held_out=*/true, held_out_);
  reporter_.progress("load", 0);
  if (!reference_options_.is_precomputed) return;
  scores_.emplace(spec_, config_, mesh_, share_, device_, reporter_);
  scores_->find(*train_data_, /*held_out=*/false);
  if (eval_data_ != nullptr) scores_->find(*eval_data_, /*held_out=*/true);
}

// A reference that only scores documents goes before the policy comes.
void Trainer::build_models() {
  const auto make_frozen = [this](const ModelSource& source) {
    auto model = build_frozen(spec_, source, config_, mesh_, device_);
    load_frozen(spec_, source, *model, mesh_.shard.rank());
    return model;
  };
  const auto passing = reference_to_precompute(spec_);
  if (passing && !scores_->has_all()) scores_->compute(*make_frozen(*passing));
  load_policy();
  if (scores_ && !scores_->has_all()) scores_->compute(trainable_);
  build_value();
  if (const auto source = teacher_of_job(spec_)) teacher_ = make_frozen(*source);
  if (const auto source = reference_in_memory(spec_)) reference_ = make_frozen(*source);
  for (const auto* other : {&value_, &teacher_, &reference_}) {
    if (*other != nullptr) share_.share_with((*other)->model->config());
  }
  if (reference_options_.sync_steps > 0) checkpointing_.also_keep(*reference_);
  if (!RewardModels::any(spec_)) return;
  reward_models_ = std::make_unique<RewardModels>(spec_, mesh_, device_);
  reward_models_->load(spec_);
}

void Trainer::load_policy() {
  const WeightFiles weights = WeightFiles::open(spec_.model().path());
  trainable_ = build_model(spec_, config_, mesh_, device_);
  reporter_.ignored(config_.unused_fields, check_weights(*trainable_.model, weights));
  if (spec_.peft().adapter_path().empty())
    tell_of_new_scores(new_scores(*trainable_.model, weights));
  load_weights(spec_, trainable_, weights, mesh_.shard.rank());
}

void Trainer::build_value() {
  value_ = build_value_model(spec_, config_, mesh_, device_);
  if (value_ == nullptr) return;
  std::vector<std::string> names = load_value_model(spec_, *value_, mesh_.shard.rank());
  for (std::string& name : names) name = "value model's " + name;
  tell_of_new_scores(names);
}

// Of a classifier that was none.
void Trainer::tell_of_new_scores(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    reporter_.info("the weights have no " + name +
                   ": it begins with values drawn from training.seed");
  }
}

LoaderOptions Trainer::loader_options_of(bool held_out) const {
  LoaderOptions options =
      loader_options(spec_, held_out, config_, mesh_.data.rank(), mesh_.data.size());
  if (scores_) {
    const DatasetScores scores = scores_->of(held_out ? *eval_data_ : *train_data_);
    options.reference = scores.rows;
    options.mismatched_reference = scores.mismatched;
  }
  return options;
}

// Takes up the checkpoint to go on from, if there is one.
void Trainer::resume() {
  Cursor cursor;
  *state_.mutable_plateau() = initial_plateau(spec_.training());
  if (auto resumed = checkpointing_.resume(trained(), *optimizer_)) {
    state_ = std::move(*resumed);
    cursor = epochs_->normal(
        resumed_cursor(*checkpointing_.resume_point(), state_, spec_.training(), *loader_));
  }
  // The epoch begins anew.
  if (cursor.epoch != state_.epoch() || cursor.row != state_.row()) state_.clear_generation();
  total_steps_ = epochs_->total_steps(spec_.training(), state_.step(), cursor);
  if (maker_) {
    const bool is_begun = state_.has_generation() && state_.generation().row() != cursor.row;
    const int64_t next = live_->number_of(cursor.row);
    const Made last{cursor.epoch, is_begun ? next : next - 1};
    const auto ahead = rows_ahead(cursor, state_.step(), last);
    maker_->training().resume(state_, cursor.epoch, cursor.row, ahead, goes_on());
  }
  if (rollouts_) rollouts_->resume(state_, cursor.epoch, cursor.row);
  state_.set_epoch(cursor.epoch);
  state_.set_row(cursor.row);
  state_.set_num_rows(loader_->num_rows());
  state_.set_shuffle(loader_->shuffles());
  schedule_.emplace(spec_.training(), total_steps_);
  cadence_.emplace(spec_.training(), total_steps_);
}

// Another run of this job was there before, or another job's checkpoint is.
bool Trainer::goes_on() const {
  return input_.attempt() > 1 || checkpointing_.resume_point().has_value();
}

v1::Finished Trainer::run() {
  try {
    return train();
  } catch (const NonFiniteLogits&) {
    refuse_weights();
  }
}

v1::Finished Trainer::train() {
  const v1::Training& training = spec_.training();
  resume();
  bool ends = false, stopped = false;
  if (training.eval_on_start() && state_.step() == 0)
    ends = best_metric_.gives_up(evaluate(), state_);
  while (state_.step() < total_steps_ && !ends && !stopped) {
    const StepEnd step = train_step();
    ends = follow_up(cadence_->after_step(state_.step()));
    if (step.epoch_ended || ends || state_.step() == total_steps_)
      ends |= follow_up(cadence_->after_epoch(epoch()));
    if (step.commands.save_checkpoint) save();
    stopped = step.commands.stop;
  }
  checkpointing_.finish();
  v1::Finished finished;
  finished.set_step(state_.step());
  finished.set_stopped(stopped);
  if (!stopped) {
    if (evaluator_ && training.eval_strategy() == "no") evaluate();
    if (training.load_best_model_at_end())
      finished.set_best_step(checkpointing_.load_best(state_, trained()));
    finished.set_output(checkpointing_.export_models(state_.step(), trained()));
  }
  reporter_.memory(state_.step(), /*now=*/true);
  return finished;
}

// First row of the step's microbatch `index`.
int64_t Trainer::row_of(int64_t index) const {
  return state_.row() + index * loader_->microbatch_rows();
}

// Logs, evaluates and saves. True: training shall end.
bool Trainer::follow_up(const Due& due) {
  bool ends = false, is_best = false;
  if (due.log) log();
  if (due.evaluate) ends = take_evaluation(evaluate(), is_best);
  const bool saves_best = spec_.training().save_strategy() == "best" && is_best;
  if (due.save || saves_best) save();
  return ends;
}

void Trainer::save() {
  if (rollouts_) rollouts_->save(state_);
  if (maker_) maker_->training().save(state_);
  checkpointing_.save(state_, trained(), *optimizer_);
  state_.clear_generation();
}

// What follows the metric follows it here. True: training shall end.
bool Trainer::take_evaluation(const v1::EvalMetrics& metrics, bool& is_best) {
  if (!best_metric_.is_followed()) return false;
  const bool ends = best_metric_.gives_up(metrics, state_);
  if (spec_.training().lr_scheduler_type() == "reduce_lr_on_plateau")
    observe_metric(spec_.training(), best_metric_.value(metrics), *state_.mutable_plateau());
  is_best = best_metric_.update(metrics, state_);
  return ends;
}

v1::EvalMetrics Trainer::evaluate() {
  v1::EvalMetrics metrics = evaluator_->evaluate(trained(), frozen(), state_.step(), reporter_);
  metrics.set_step(state_.step());
  metrics.set_num_tokens(state_.num_tokens());
  metrics.set_epoch(epoch());
  reporter_.evaluated(metrics);
  return metrics;
}

// Reports the steps since the last report, if there are any.
void Trainer::log() {
  if (state_.window().steps() == 0) return;
  last_step_.set_loss(state_.window().loss() / state_.window().steps());
  set_means(state_.window().metrics(), *last_step_.mutable_metrics());
  last_step_.clear_rank_times();
  for (const v1::RankTime& sum : rank_times_) {
    v1::RankTime& mean = *last_step_.add_rank_times();
    mean.set_busy_seconds(sum.busy_seconds() / num_times_);
    mean.set_wait_seconds(sum.wait_seconds() / num_times_);
  }
  rank_times_.clear();
  num_times_ = 0;
  reporter_.step(last_step_);
  state_.clear_window();
}

void Trainer::add_times(const std::vector<v1::RankTime>& times) {
  rank_times_.resize(times.size());
  for (size_t rank = 0; rank < times.size(); ++rank) {
    v1::RankTime& sum = rank_times_[rank];
    sum.set_busy_seconds(sum.busy_seconds() + times[rank].busy_seconds());
    sum.set_wait_seconds(sum.wait_seconds() + times[rank].wait_seconds());
  }
  ++num_times_;
}

Trainer::StepData Trainer::next_step_data() {
  StepData data;
  const int64_t count = epochs_->microbatches_of_step(state_.row());
  if (maker_) prepare_completions(count);
  for (int64_t i = 0; i < count; ++i) {
    data.microbatches.num_labels.push_back(loader_->num_labels(state_.epoch(), row_of(i)));
    data.num_tokens += loader_->num_tokens(state_.epoch(), row_of(i));
  }
  data.microbatches.step = state_.step();
  data.microbatches.learning_rate = learning_rate();
  data.microbatches.epoch = state_.epoch();
  data.microbatches.batch = [this](int64_t i) { return microbatch(i); };
  data.microbatches.before_update = [this] { checkpointing_.before_update(); };
  return data;
}

// Those of the step that begins there.
StepRows Trainer::rows_at(const Cursor& cursor) const {
  const int64_t count = epochs_->microbatches_of_step(cursor.row);
  const int64_t end = cursor.row + count * loader_->microbatch_rows();
  return {cursor.epoch, cursor.row, std::min(end, loader_->num_rows())};
}

// Those of the first step from the cursor on, up to which `step` were taken, that needs completions
// after the last ones made; none where training ends before.
std::optional<StepRows> Trainer::rows_ahead(Cursor cursor, int64_t step, const Made& last) const {
  for (; step < total_steps_; ++step) {
    const StepRows rows = rows_at(cursor);
    if (rows.epoch != last.epoch || live_->number_of(rows.end - 1) > last.number) return rows;
    cursor = epochs_->after(cursor, epochs_->microbatches_of_step(cursor.row));
  }
  return std::nullopt;
}

void Trainer::prepare_completions(int64_t num_microbatches) {
  const Cursor cursor{state_.epoch(), state_.row()};
  const StepRows rows = rows_at(cursor);
  std::optional<StepRows> next;
  if (spec_.generation().async()) {
    next = rows_ahead(epochs_->after(cursor, num_microbatches), state_.step() + 1,
                      {cursor.epoch, live_->number_of(rows.end - 1)});
  }
  maker_->prepare(rows, next, state_.step());
  add_metric(*state_.mutable_window(), "sampling/staleness",
             maker_->training().staleness(rows, state_.step()));
  timer_.enter(Phase::kData);
}

// This rank's part of the step's microbatch `index`.
Batch Trainer::microbatch(int64_t index) {
  const int64_t row = row_of(index);
  if (rollouts_) return rollouts_->microbatch(models_of(trained(), frozen()), state_.epoch(), row);
  return share_.of(loader_->microbatch(state_.epoch(), row));
}

// Forward, backward and update.
Trainer::StepEnd Trainer::train_step() {
  trace_.begin_step(state_.step() + 1);
  timer_.begin_step();
  recorder_.enter("data", state_.step() + 1);
  lease_.check();
  const StepData data = next_step_data();
  const MetricSumsList sums = step_->forward_backward(data.microbatches);

  enter(Phase::kOptimizer);
  const Reduced reduced = reduce(sums);
  const double grad_norm = step_->norm();
  const double aux_coef = trainable_.model->config().experts.router_aux_loss_coef;
  add_step(*state_.mutable_window(), MethodMetrics(*objective_, aux_coef), reduced.sums);
  if (rollouts_) {
    for (const auto& [name, value] : rollouts_->take_metrics())
      add_metric(*state_.mutable_window(), name, value);
  }
  check_finite(state_.window().loss(), "loss");
  check_finite(grad_norm, "gradient norm");
  step_->update(data.microbatches, grad_norm);
  const bool epoch_ended = advance(data);
  if (reference_options_.sync_steps > 0 && state_.step() % reference_options_.sync_steps == 0)
    sync_reference(trainable_, *reference_, reference_options_.sync_share);
  note_step(data, grad_norm);
  reporter_.memory(state_.step(), /*now=*/state_.step() == 1);
  return {reduced.commands, epoch_ended};
}

void Trainer::enter(Phase phase) {
  timer_.enter(phase);
  const char* name = phase_name(phase).data();
  if (phase == Phase::kData) return recorder_.enter(name, state_.step() + 1);
  reporter_.progress(name, state_.step() + 1);
}

void Trainer::note_step(const StepData& data, double grad_norm) {
  const v1::StepTime time = timer_.end_step();
  if (const auto trace = trace_.end_step()) reporter_.traced(state_.step(), *trace);
  last_step_.set_step(state_.step());
  last_step_.set_total_steps(static_cast<int32_t>(total_steps_));
  last_step_.set_grad_norm(grad_norm);
  last_step_.set_learning_rate(data.microbatches.learning_rate);
  last_step_.set_num_tokens(state_.num_tokens());
  last_step_.set_tokens_per_second(data.num_tokens / std::max(1e-9, time.total_seconds()));
  last_step_.set_epoch(epoch());
  *last_step_.mutable_time() = time;
}

double Trainer::learning_rate() const {
  if (spec_.training().lr_scheduler_type() == "reduce_lr_on_plateau")
    return state_.plateau().learning_rate();
  return schedule_->learning_rate(state_.step() / steps_of_rate_ * steps_of_rate_);
}

// One small all-reduce a step: the metrics, whether any rank was told to stop or save, so that all
// ranks do so after the same step, how far the save that goes on is, and each rank's time.
Trainer::Reduced Trainer::reduce(const MetricSumsList& sums) {
  const CommandReader::Pending mine = commands_.take();
  choose_traces(mine.traces);
  const CheckpointWriter::Progress written = checkpointing_.progress();
  const TrainStep::Reduced all = step_->reduce(sums,
                                               {.stop = mine.stop ? 1. : 0.,
                                                .save_checkpoint = mine.save_checkpoint ? 1. : 0.,
                                                .saved = written.done,
                                                .save_failed = written.failed},
                                               timer_.take_rank_time());
  add_times(all.times);
  checkpointing_.agree({.done = all.signals.saved, .failed = all.signals.save_failed});
  return {all.sums,
          {.stop = all.signals.stop > 0, .save_checkpoint = all.signals.save_checkpoint > 0}};
}

// The step that is under way is too late to be traced.
void Trainer::choose_traces(const std::vector<v1::TraceSteps>& commands) {
  const int next = state_.step() + 2;
  for (const v1::TraceSteps& command : commands)
    trace_.choose(std::max(next, command.first_step()), command.num_steps());
}

// Counts the step and moves the data cursor behind it. True: that was the end of an epoch.
bool Trainer::advance(const StepData& data) {
  const Cursor cursor = epochs_->after({state_.epoch(), state_.row()}, data.microbatches.size());
  const bool epoch_ended = cursor.epoch != state_.epoch();
  state_.set_step(state_.step() + 1);
  state_.set_num_tokens(state_.num_tokens() + data.num_tokens);
  state_.set_epoch(cursor.epoch);
  state_.set_row(cursor.row);
  return epoch_ended;
}

// Passes over the data so far.
double Trainer::epoch() const { return epochs_->progress({state_.epoch(), state_.row()}); }

void Trainer::check_finite(double value, const char* what) const {
  if (std::isfinite(value)) return;
  throw UserError("training.learning_rate",
                  std::string("the ") + what + " is " + (std::isnan(value) ? "nan" : "infinite") +
                      " at step " + std::to_string(state_.step() + 1) + rate_text(spec_) +
                      "; lower the rate, or check the weights and the data");
}

// No completion can be made with them.
void Trainer::refuse_weights() const {
  if (state_.step() == 0) {
    throw UserError("model.path", "model.path is " + spec_.model().path() +
                                      ", whose logits are not finite in " + spec_.model().dtype() +
                                      ": no completion can be made with these weights");
  }
  throw UserError("training.learning_rate",
                  "the model's logits are not finite after step " + std::to_string(state_.step()) +
                      rate_text(spec_) +
                      ": its weights have diverged, and no completion can be made with them; lower "
                      "the rate or training.max_grad_norm, and go on from an earlier checkpoint");
}

}  // namespace tessera
