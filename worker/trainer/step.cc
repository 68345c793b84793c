#include "worker/trainer/step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>

#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"
#include "worker/trainer/model_options.h"

namespace tessera {

std::unique_ptr<AdamW> make_optimizer(const v1::JobSpec& spec, const TrainedModels& trained,
                                      int rank) {
  const v1::Training& training = spec.training();
  const std::string& dtype = spec.memory().optimizer_state_dtype();
  AdamW::Options options{training.adam_beta1(), training.adam_beta2(), training.adam_epsilon(),
                         training.weight_decay()};
  if (dtype == "bfloat16") options.state.type = AdamWStateType::kBfloat16;
  if (dtype == "int8") options.state.type = AdamWStateType::kInt8;
  options.state.offload = spec.memory().offload_optimizer_device() == "cpu";
  return std::make_unique<AdamW>(trained.units(), options, rank);
}

Models models_of(const TrainedModels& trained, const FrozenModels& frozen) {
  const auto model = [](const TrainableModel* of) { return of ? of->model.get() : nullptr; };
  return {*trained.policy.model, model(frozen.reference), model(frozen.teacher),
          model(trained.value)};
}

MetricSumsList TrainStep::forward_backward(const StepMicrobatches& microbatches) {
  const OwnerScope scope(Owner::kActivations);
  const Models models = models_of(parts_.trained, parts_.frozen);
  StepShare share;
  share.num_labels =
      std::accumulate(microbatches.num_labels.begin(), microbatches.num_labels.end(), int64_t{0});
  share.num_microbatches = microbatches.size();
  share.epoch = microbatches.epoch;
  MetricSumsList sums(parts_.objective);
  for (int64_t i = 0; i < microbatches.size(); ++i) {
    const bool last = i + 1 == microbatches.size();
    on_phase_(Phase::kData);
    const Batch batch = to_device(microbatches.batch(i), parts_.device);
    on_phase_(Phase::kForward);
    const MicrobatchOfStep place{microbatches.step, i, microbatches.size(),
                                 parts_.mesh.data.rank()};
    share.num_microbatch_labels = microbatches.num_labels[i];
    share.forward = training_forward(parts_.spec, models.policy.config(), place);
    ObjectiveOutput output = parts_.objective.run(models, batch, share);
    backward(microbatches, parts_.trained.policy, output.loss, last);
    if (models.value != nullptr) {
      output.loss.reset();
      on_phase_(Phase::kForward);
      share.value_forward = training_forward(parts_.spec, models.value->config(), place);
      const ObjectiveOutput of_values = parts_.objective.run_value(models, batch, share);
      backward(microbatches, *parts_.trained.value, of_values.loss, last);
      output.sums = output.sums + of_values.sums;
    }
    sums.add(output);
  }
  return sums;
}

void TrainStep::backward(const StepMicrobatches& microbatches, TrainableModel& model,
                         const at::Tensor& loss, bool last) {
  on_phase_(Phase::kBackward);
  begin_backward(microbatches, model, last);
  torch::autograd::backward({loss}, {});
  model.finish_backward();
}

// Before the backward of a microbatch. The policy's is the first one of it.
void TrainStep::begin_backward(const StepMicrobatches& microbatches, TrainableModel& model,
                               bool last) {
  model.begin_backward(last);
  if (!last || !parts_.spec.memory().optimizer_in_backward()) return;
  if (&model == &parts_.trained.policy) {
    microbatches.before_update();
    parts_.optimizer.begin_step();
    norm_.emplace(parts_.mesh);
  }
  const double rate = microbatches.learning_rate;
  model.reductions->set_on_gradient([this, rate](ShardedUnit& unit) {
    norm_->add({&unit});
    parts_.optimizer.update(unit, rate, /*gradient_scale=*/1);
    unit.clear_gradient();
  });
}

// Behind the sums come the signals, and of each rank two numbers to which the others add zeros: a
// gather that costs no message of its own.
TrainStep::Reduced TrainStep::reduce(const MetricSumsList& sums, const Signals& signals,
                                     const v1::RankTime& time) const {
  const OwnerScope scope(Owner::kCommunication);
  const Collectives& world = parts_.mesh.world;
  const size_t num_times = world.size() == 1 ? 0 : 2 * static_cast<size_t>(world.size());
  std::vector<double> mine{signals.stop, signals.save_checkpoint, signals.saved,
                           signals.save_failed};
  const size_t num_signals = mine.size();
  mine.resize(num_signals + num_times);
  if (num_times > 0) {
    const size_t place = num_signals + 2 * static_cast<size_t>(world.rank());
    mine[place] = time.busy_seconds();
    mine[place + 1] = time.wait_seconds();
  }
  const at::Tensor behind =
      at::tensor(mine, at::TensorOptions(host_device(parts_.device)).dtype(at::kDouble));
  at::Tensor values = at::cat({sums.flat(), behind.to(parts_.device)});
  parts_.mesh.world.all_reduce_sum(values);
  const std::vector<double> all = host_values(values);
  const double* told = all.data() + all.size() - mine.size();
  Reduced reduced{sums.read(all.data()), {told[0], told[1], told[2], told[3]}, {}};
  for (size_t i = num_signals; i < mine.size(); i += 2) {
    v1::RankTime& of_rank = reduced.times.emplace_back();
    of_rank.set_busy_seconds(told[i]);
    of_rank.set_wait_seconds(told[i + 1]);
  }
  return reduced;
}

double TrainStep::norm() const {
  const OwnerScope scope(Owner::kGradients);
  if (norm_) return norm_->total();
  return gradient_norm(parts_.trained.units(), parts_.mesh);
}

void TrainStep::update(const StepMicrobatches& microbatches, double norm) const {
  if (parts_.spec.memory().optimizer_in_backward()) return;
  microbatches.before_update();
  parts_.optimizer.step(microbatches.learning_rate,
                        clip_scale(norm, parts_.spec.training().max_grad_norm()));
  for (ShardedUnit* unit : parts_.trained.units()) unit->clear_gradient();
}

std::vector<MicrobatchSums> evaluate_microbatches(const EvaluationParts& parts, int64_t count,
                                                  const std::function<Batch(int64_t)>& batch_of) {
  const c10::AutoGradMode no_grad(false);
  const OwnerScope scope(Owner::kActivations);
  const PhaseScope phase(Phase::kEval);
  const Models models = models_of(parts.trained, parts.frozen);
  StepShare share;
  share.forward.aux_loss_weight = models.policy.config().experts.router_aux_loss_coef;
  MetricSumsList sums(parts.objective);
  for (int64_t i = 0; i < count; ++i) {
    const Batch batch = to_device(batch_of(i), parts.device);
    share.num_labels = share.num_microbatch_labels = parts.num_labels(i);
    ObjectiveOutput output = parts.objective.run(models, batch, share);
    if (models.value != nullptr)
      output.sums = output.sums + parts.objective.run_value(models, batch, share).sums;
    sums.add(output);
  }
  parts.trained.policy.finish_backward();
  if (parts.trained.value != nullptr) parts.trained.value->finish_backward();
  at::Tensor values = sums.flat();
  parts.ranks.all_reduce_sum(values);
  return sums.read(host_values(values).data());
}

}  // namespace tessera
