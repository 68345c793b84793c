#include "worker/trainer/rehearsal.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <ranges>
#include <thread>

#include "worker/checkpoint/snapshot.h"
#include "worker/memory/cpu_scratch.h"
#include "worker/kernels/meta_operators.h"
#include "worker/kernels/stand_in.h"
#include "worker/kernels/work.h"
#include "worker/memory/allocators.h"
#include "worker/memory/ledger.h"
#include "worker/memory/report.h"
#include "worker/model/stored_weights.h"
#include "worker/trainer/cadence.h"
#include "worker/trainer/checkpointing.h"
#include "worker/trainer/model_options.h"
#include "worker/trainer/step.h"

namespace tessera {
namespace {

const at::Device kRehearsed(at::kMeta);
// Sizes that the caching allocator of a GPU gives are multiples of this.
constexpr int64_t kCudaGranularity = 512;

StandIn stand_in_of(const v1::JobSpec& spec, const RehearsalOptions& options) {
  if (spec.resources().device() == "cuda") return {.device = at::kCUDA};
  const int cores = options.cores_per_machine > 0
                        ? options.cores_per_machine
                        : static_cast<int>(std::thread::hardware_concurrency());
  const int ranks = options.ranks_per_machine > 0 ? options.ranks_per_machine
                                                  : spec.parallelism().num_processes();
  const int wanted = spec.resources().cpu_threads();
  return {.device = at::kCPU, .num_threads = wanted > 0 ? wanted : std::max(1, cores / ranks)};
}

std::unique_ptr<Collectives> make_group(const v1::JobSpec& spec, int rank,
                                        const RehearsalOptions& options) {
  using Backend = FakeGroup::Backend;
  const int size = spec.parallelism().num_processes();
  const bool one_machine = options.ranks_per_machine == 0 || options.ranks_per_machine >= size;
  const Backend of_cpu = one_machine ? Backend::kSharedMemory : Backend::kGloo;
  return make_fake_collectives(
      {rank, size, spec.resources().device() == "cuda" ? Backend::kNccl : of_cpu});
}

// What is counted now goes to one of several counts.
class Counting {
 public:
  void begin(WorkCount& count) {
    end();
    scope_.emplace(count);
  }
  void end() { scope_.reset(); }

 private:
  std::optional<WorkScope> scope_;
};

void add(WorkCount& sum, const WorkCount& part, int64_t times) {
  sum.flops += part.flops * static_cast<double>(times);
  sum.memory_bytes += part.memory_bytes * times;
  sum.link_bytes += part.link_bytes * times;
  sum.host_bytes += part.host_bytes * times;
  sum.disk_bytes += part.disk_bytes * times;
  sum.num_operators += part.num_operators * times;
}

// The job on one rank.
class Rehearsed {
 public:
  Rehearsed(const v1::JobSpec& spec, const ModelConfig& config, Collectives& ranks,
            int64_t microbatches_per_step)
      : spec_(spec),
        ranks_(ranks),
        microbatches_per_step_(microbatches_per_step),
        objective_(make_objective(spec)),
        trainable_(build_model(spec, config, ranks, kRehearsed)),
        optimizer_(make_optimizer(spec, trainable_, ranks.rank())),
        step_({spec, *objective_, trainable_, *optimizer_, ranks, kRehearsed}, [](Phase) {}) {}

  DecoderModel& model() { return *trainable_.model; }

  // A step of two microbatches at most: those after the first are as heavy as the heaviest of them.
  // Returns what a whole step does.
  WorkCount step(const HeavyStep& heavy, Snapshot* saved = nullptr) {
    WorkCount first, later, rest;
    Counting counting;
    at::Tensor skipped;
    StepMicrobatches microbatches;
    microbatches.num_labels.assign(microbatches_per_step_ > 1 ? 2 : 1, 1);
    microbatches.batch = [&](int64_t index) {
      counting.begin(index == 0 ? first : later);
      if (index == 0) return heavy.first.batch(kRehearsed);
      skipped = metrics_of(heavy.later.place - 1);
      return heavy.later.batch(kRehearsed);
    };
    microbatches.before_update = [saved] {
      if (saved != nullptr) saved->detach();
    };
    const LabelSumsList sums = step_.forward_backward(microbatches);
    counting.begin(rest);
    step_.reduce(sums, {});
    const double norm = step_.norm();
    microbatches.before_update();
    step_.update(/*learning_rate=*/0, norm);
    counting.end();
    WorkCount total = rest;
    add(total, first, 1);
    add(total, later, microbatches_per_step_ - 1);
    return total;
  }

  void evaluate(const MicrobatchShape& shape) {
    at::Tensor skipped;
    evaluate_microbatches({*objective_, trainable_, ranks_, kRehearsed}, 1, [&](int64_t) {
      skipped = metrics_of(shape.place);
      return shape.batch(kRehearsed);
    });
  }

  // What a save that nobody has begun to write holds.
  std::unique_ptr<Snapshot> snapshot() const {
    return std::make_unique<Snapshot>(state_vectors(trainable_, *optimizer_));
  }

 private:
  // What microbatches that are left out leave behind.
  static at::Tensor metrics_of(int64_t count) {
    return at::empty({count * LabelSumsList::kNumSums},
                     at::TensorOptions(kRehearsed).dtype(at::kDouble));
  }

  const v1::JobSpec& spec_;
  Collectives& ranks_;
  const int64_t microbatches_per_step_;
  std::unique_ptr<Objective> objective_;
  TrainableModel trainable_;
  std::unique_ptr<AdamW> optimizer_;
  TrainStep step_;
};

// Whether a step may run beside a save.
bool saves_between_steps(const v1::Training& training, int64_t total_steps) {
  if (!training.async_save() || training.save_strategy() == "no") return false;
  if (training.save_strategy() != "steps" || total_steps <= 0) return true;
  const Cadence cadence(training, total_steps);
  for (int64_t step = 1; step < total_steps; ++step) {
    if (cadence.after_step(step).save) return true;
  }
  return false;
}

void set_parameters(DecoderModel& model, v1::Rehearsal& result) {
  int64_t all = 0, trainable = 0;
  for (const Parameter* parameter : all_parameters(model)) {
    const int64_t numel = c10::multiply_integers(parameter->shape);
    all += numel;
    if (parameter->trainable) trainable += numel;
  }
  result.set_num_parameters(all);
  result.set_num_trainable_parameters(trainable);
}

void set_cost(const WorkCount& work, v1::StepCost& cost) {
  cost.set_flops(work.flops);
  cost.set_memory_bytes(work.memory_bytes);
  cost.set_link_bytes(work.link_bytes);
  cost.set_host_bytes(work.host_bytes);
  cost.set_disk_bytes(work.disk_bytes);
  cost.set_num_operators(work.num_operators);
}

void run(const v1::JobSpec& spec, const ModelConfig& config, RehearsalData& data,
         const RehearsalOptions& options, v1::Rehearsal& result) {
  const HeaviestMicrobatches& heaviest = data.training(spec, config);
  const std::unique_ptr<Collectives> ranks = make_group(spec, heaviest.rank, options);
  Rehearsed job(spec, config, *ranks, heaviest.microbatches_per_step);
  const HeavyStep& heavy = heaviest.steps.front();
  job.step(heavy);
  set_cost(job.step(heavy), *result.mutable_cost());
  for (const HeavyStep& other : heaviest.steps | std::views::drop(1)) job.step(other);
  if (!spec.data().eval().empty()) {
    for (const HeavyStep& held_out : data.held_out(spec, config).steps)
      job.evaluate(held_out.first);
  }
  // On a GPU the copy is none of the device's.
  if (spec.resources().device() == "cpu" &&
      saves_between_steps(spec.training(), heaviest.total_steps)) {
    const std::unique_ptr<Snapshot> saved = job.snapshot();
    job.step(heavy, saved.get());
    job.step(heavy);
  }
  result.set_rank(heaviest.rank);
  set_parameters(job.model(), result);
  result.set_num_tokens(heavy.first.num_tokens +
                        (heaviest.microbatches_per_step - 1) * heavy.later.num_tokens);
}

}  // namespace

v1::Rehearsal rehearse(const v1::JobSpec& spec, RehearsalData& data,
                       const RehearsalOptions& options) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  MemoryLedger& ledger = MemoryLedger::install_meta();
  register_meta_operators();
  const StandIn device_stood_for = stand_in_of(spec, options);
  const StandInScope stand_in(device_stood_for);
  const CpuScratchScope scratch;
  set_meta_granularity(device_stood_for.device == at::kCUDA ? kCudaGranularity : 1);
  const c10::AutoGradMode with_grad(true);
  const OwnerScope scope(Owner::kOther);
  ledger.reset_peak();
  TORCH_CHECK(ledger.snapshot().current_bytes == 0, "a rehearsal began with tensors alive");
  v1::Rehearsal result;
  result.set_world_size(spec.parallelism().num_processes());
  result.set_device(spec.resources().device());
  run(spec, read_model_config(spec.model().path()), data, options, result);
  const MemoryTotals device = ledger.snapshot(Space::kDevice), host = ledger.snapshot(Space::kHost);
  result.set_peak_bytes(device.peak_bytes);
  *result.mutable_owners() = owner_bytes(device);
  result.set_host_peak_bytes(host.peak_bytes);
  *result.mutable_host_owners() = owner_bytes(host);
  return result;
}

}  // namespace tessera
