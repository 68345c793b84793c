#include "worker/trainer/rehearsal.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <ranges>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "proto/spec/online_relations.h"
#include "proto/spec/threads.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/kernels/meta_operators.h"
#include "worker/kernels/stand_in.h"
#include "worker/kernels/work.h"
#include "worker/memory/cpu_scratch.h"
#include "worker/memory/ledger.h"
#include "worker/memory/report.h"
#include "worker/model/stored_weights.h"
#include "worker/trainer/alike_ranks.h"
#include "worker/trainer/cadence.h"
#include "worker/trainer/checkpointing.h"
#include "worker/trainer/frozen.h"
#include "worker/trainer/generation_choice.h"
#include "worker/trainer/generation_rehearsal.h"
#include "worker/trainer/model_options.h"
#include "worker/trainer/reference_pass.h"
#include "worker/trainer/rollout_pass.h"
#include "worker/trainer/step.h"
#include "worker/trainer/stream_share.h"
#include "worker/trainer/value_model.h"

namespace tessera {
namespace {

const at::Device kRehearsed(at::kMeta);
// Sizes that the caching allocator of a GPU gives are multiples of this.
constexpr int64_t kCudaGranularity = 512;
// Scratch below this part of the peak may be that of another microbatch: a rehearsal is to be right
// to 0.5%.
constexpr int64_t kUnevenShare = 200;
// Of ranks that share a stream so many are rehearsed: more would take long, and differ little.
constexpr size_t kMostParts = 4;

StandIn stand_in_of(const v1::JobSpec& spec, const RehearsalOptions& options) {
  if (spec.resources().device() == "cuda")
    return {.device = at::kCUDA, .granularity = kCudaGranularity};
  const int ranks = options.ranks_per_machine > 0 ? options.ranks_per_machine
                                                  : spec.parallelism().num_processes();
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return {.device = at::kCPU, .num_threads = spec::threads_of_rank(spec.resources(), ranks, cores)};
}

Mesh make_mesh(const v1::JobSpec& spec, int rank, const RehearsalOptions& options) {
  const MeshShape shape = mesh_shape(spec.parallelism());
  const bool one_machine = options.ranks_per_machine == 0;
  return Mesh(*make_fake_world(
                  {.rank = rank,
                   .size = shape.size(),
                   .cuda = spec.resources().device() == "cuda",
                   .ranks_per_machine = one_machine ? shape.size() : options.ranks_per_machine}),
              shape);
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

// The job on one rank. The mesh and the data outlive it.
class Rehearsed {
 public:
  Rehearsed(const v1::JobSpec& spec, const ModelConfig& config, const Mesh& mesh,
            RehearsalData& data, int64_t microbatches_per_step)
      : spec_(spec),
        mesh_(mesh),
        share_(spec, config, mesh),
        microbatches_per_step_(microbatches_per_step),
        objective_(make_objective(spec, mesh.data)),
        trainable_(build_model(spec, config, mesh, kRehearsed)),
        value_(build_value_model(spec, config, mesh, kRehearsed)),
        reference_(build(reference_in_memory(spec), config)),
        teacher_(build(teacher_of_job(spec), config)),
        reward_models_(RewardModels::any(spec)
                           ? std::make_unique<RewardModels>(spec, mesh, kRehearsed)
                           : nullptr),
        optimizer_(make_optimizer(spec, trained(), mesh.shard.rank())),
        step_({spec, *objective_, trained(), *optimizer_, mesh_, kRehearsed, frozen()},
              [this](Phase phase) { enter(phase); }) {
    for (const auto* other : {&value_, &teacher_, &reference_}) {
      if (*other != nullptr) share_.share_with((*other)->model->config());
    }
    const RolloutDataset* rollouts = data.rollouts(spec, /*held_out=*/false, config);
    if (rollouts != nullptr && objective_->online() != nullptr)
      completions_.emplace(*objective_->online(), *rollouts);
    if (rollouts != nullptr && spec::makes_completions(spec)) {
      using Parts = GenerationRehearsal::Parts;
      const std::vector<JudgedLengths>& judged = data.judged(spec, /*held_out=*/false, config);
      // GKD has no rewards.
      if (spec::teacher_writes(spec))
        teachers_generation_.emplace(Parts{spec, *rollouts, judged, *teacher_, nullptr, mesh_});
      if (!spec.method().has_gkd() || spec::student_writes(spec)) {
        generation_.emplace(
            Parts{spec, *rollouts, judged, trainable_, reward_models_.get(), mesh_});
      }
    }
    if (spec::evaluates_completions(spec)) {
      evaluation_.emplace(spec, *data.rollouts(spec, /*held_out=*/true, config),
                          data.judged(spec, /*held_out=*/true, config), *this);
    }
  }

  // Of the models that are trained.
  ParameterCounts parameters() {
    ParameterCounts counts = count_parameters(*trainable_.model);
    if (value_ != nullptr) counts += count_parameters(*value_->model);
    return counts;
  }

  // A step of three microbatches at most: all between the first and the last are as heavy as the
  // heaviest of them. Before it, the completions that it may begin with. Returns what a whole step
  // does.
  WorkCount step(const HeavyStep& heavy, Snapshot* saved = nullptr) {
    if (generation_) generation_->run();
    if (teachers_generation_) teachers_generation_->run();
    const int64_t count = std::min<int64_t>(microbatches_per_step_, 3);
    WorkCount first, between, last, rest;
    Counting counting;
    at::Tensor skipped;
    StepMicrobatches microbatches;
    microbatches.num_labels.assign(count, 1);
    microbatches.batch = [&](int64_t index) {
      const bool is_last = index + 1 == count;
      counting.begin(index == 0 ? first : is_last ? last : between);
      if (index == 0) return first_batch(heavy.first, completions_);
      const MicrobatchShape& shape = is_last ? heavy.last : heavy.between;
      skipped.reset();
      skipped = metrics_of(std::max<int64_t>(0, shape.place - index));
      return batch_of(shape, completions_);
    };
    microbatches.before_update = [saved] {
      if (saved != nullptr) saved->detach();
    };
    const MetricSumsList sums = step_.forward_backward(microbatches);
    enter(Phase::kOptimizer);
    counting.begin(rest);
    step_.reduce(sums, {});
    step_.update(microbatches, step_.norm());
    counting.end();
    phase_.reset();
    WorkCount total = rest;
    add_generation(total);
    total.add(first, 1);
    total.add(between, microbatches_per_step_ - 2);
    total.add(last, 1);
    return total;
  }

  void evaluate(const MicrobatchShape& shape) {
    if (evaluation_) evaluation_->generation.run();
    const Objective& objective = evaluation_ ? *evaluation_->objective : *objective_;
    at::Tensor skipped;
    evaluate_microbatches({objective, trained(), mesh_.world, kRehearsed, frozen()}, 1,
                          [&](int64_t) {
                            skipped = metrics_of(shape.place);
                            if (evaluation_) return first_batch(shape, evaluation_->completions);
                            return shape.batch(kRehearsed, place_of(shape));
                          });
  }

  // What it has of generations. With GKD some microbatches' are the student's, or the teacher's.
  void add_generation(WorkCount& step) {
    const double share = spec_.method().has_gkd() ? spec_.method().gkd().lmbda() : 1;
    if (generation_ && share > 0) step.add(generation_->cost_of_step(share), 1);
    if (teachers_generation_) step.add(teachers_generation_->cost_of_step(1 - share), 1);
  }

  // Of a generation; absent: none is made.
  std::optional<WorkCount> generation_cost() {
    std::optional<GenerationRehearsal>& made = generation_ ? generation_ : teachers_generation_;
    return made ? std::optional(made->cost()) : std::nullopt;
  }

  // What a save that nobody has begun to write holds.
  std::unique_ptr<Snapshot> snapshot() {
    const bool moves = reference_options(spec_.method()).sync_steps > 0;
    return std::make_unique<Snapshot>(
        state_vectors(trained(), *optimizer_, moves ? reference_.get() : nullptr));
  }

 private:
  void enter(Phase phase) {
    phase_.reset();
    phase_.emplace(phase);
  }
  std::unique_ptr<TrainableModel> build(const std::optional<ModelSource>& source,
                                        const ModelConfig& policy) const {
    return source ? build_frozen(spec_, *source, policy, mesh_, kRehearsed) : nullptr;
  }
  TrainedModels trained() { return {trainable_, value_.get()}; }
  FrozenModels frozen() const { return {reference_.get(), teacher_.get()}; }
  using Completions = std::optional<RehearsedCompletions>;
  Batch batch_of(const MicrobatchShape& shape, const Completions& completions) const {
    Batch batch = shape.batch(kRehearsed, place_of(shape));
    if (!completions) return batch;
    batch.completions = completions->targets_of(batch, kRehearsed);
    if (shape.has_completion_tokens) return batch;  // pairs
    const OwnerScope scope(Owner::kData);
    batch.label_numbers_L =
        at::empty({batch.num_labels}, at::TensorOptions(host_device(kRehearsed)).dtype(at::kLong));
    return batch;
  }
  // What comes before a step that begins with new completions.
  Batch first_batch(const MicrobatchShape& shape, const Completions& completions) {
    Batch batch = batch_of(shape, completions);
    if (completions) completions->score(models_of(trained(), frozen()), batch, kRehearsed);
    return batch;
  }
  StreamPart place_of(const MicrobatchShape& shape) const {
    return share_.place(shape.cu_seqlens.back());
  }

  // What microbatches that are left out leave behind.
  at::Tensor metrics_of(int64_t count) const {
    const auto num_sums = 2 * static_cast<int64_t>(objective_->metrics().size());
    return at::empty({count * num_sums}, at::TensorOptions(kRehearsed).dtype(at::kDouble));
  }

  const v1::JobSpec& spec_;
  const Mesh& mesh_;
  StreamShare share_;
  const int64_t microbatches_per_step_;
  std::unique_ptr<Objective> objective_;
  TrainableModel trainable_;
  std::unique_ptr<TrainableModel> value_, reference_, teacher_;
  std::unique_ptr<RewardModels> reward_models_;
  std::unique_ptr<AdamW> optimizer_;
  TrainStep step_;
  Completions completions_;
  // Where completions are made in training, of the policy and of a teacher.
  std::optional<GenerationRehearsal> generation_, teachers_generation_;
  // Where others are made to evaluate.
  struct Evaluation {
    Evaluation(const v1::JobSpec& job, const RolloutDataset& rollouts,
               const std::vector<JudgedLengths>& judged, Rehearsed& of)
        : spec(spec::evaluation_job(job)),
          objective(make_objective(spec, of.mesh_.data)),
          completions(std::in_place, *objective->online(), rollouts),
          generation({spec, rollouts, judged, of.trainable_, of.reward_models_.get(), of.mesh_},
                     *of.generation_) {}

    const v1::JobSpec spec;
    const std::unique_ptr<Objective> objective;
    const Completions completions;
    GenerationRehearsal generation;
  };
  std::optional<Evaluation> evaluation_;
  std::optional<PhaseScope> phase_;
};

// The pass over the documents before training, where the job has one.
void rehearse_scoring(const v1::JobSpec& spec, const ModelConfig& config, RehearsalData& data,
                      const Mesh& mesh) {
  const ReferenceOptions reference = reference_options(spec.method());
  if (!reference.is_precomputed) return;
  v1::JobSpec pass = spec;
  v1::Training& training = *pass.mutable_training();
  training.set_max_steps(-1);
  training.set_num_train_epochs(1);
  training.set_gradient_accumulation_steps(1);
  training.set_train_sampling_strategy("sequential");
  training.set_dataloader_drop_last(false);
  if (reference.precompute_rows > 0) {
    training.set_per_device_train_batch_size(static_cast<int32_t>(reference.precompute_rows));
    training.mutable_accelerator_config()->set_split_batches(false);
  }
  std::unique_ptr<TrainableModel> model;
  if (const auto source = reference_to_precompute(spec)) {
    model = build_frozen(spec, *source, config, mesh, kRehearsed);
  } else {
    model = std::make_unique<TrainableModel>(build_model(spec, config, mesh, kRehearsed));
  }
  const OwnerScope scope(Owner::kActivations);
  const StreamShare share(spec, config, mesh);
  for (const HeavyStep& heavy : data.training(pass, config).steps) {
    const StreamPart place = share.place(heavy.first.cu_seqlens.back());
    score_rows(spec, *model->model, heavy.first.batch(kRehearsed, place), mesh.data);
  }
}

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

void set_cost(const WorkCount& work, v1::StepCost& cost) {
  cost.set_flops(work.flops);
  cost.set_memory_bytes(work.memory_bytes);
  cost.set_cpu_bytes(work.cpu_bytes);
  cost.set_link_bytes(work.link_bytes);
  cost.set_host_bytes(work.host_bytes);
  cost.set_disk_bytes(work.disk_bytes);
  cost.set_num_operators(work.num_operators);
}

// Whether what products take may move the peak to a microbatch that is not the heaviest: oneDNN's
// scratch rises and falls with the size of a matrix. Of a large model it is too little.
bool is_uneven(const CpuScratchScope& scratch, const MemoryLedger& ledger) {
  return scratch.largest_product() * kUnevenShare > ledger.snapshot().peak_bytes;
}

// The rehearsals of a job: of one rank for each group of alike ranks that may have the peak.
class RankRehearsals {
 public:
  RankRehearsals(const v1::JobSpec& spec, RehearsalData& data, const RehearsalOptions& options)
      : spec_(spec),
        config_(read_model_config(spec.model().path())),
        data_(data),
        options_(options),
        alike_(alike_ranks(spec, config_)) {}

  v1::Rehearsal run() {
    const size_t heaviest = group_with_most_tokens();
    const v1::Rehearsal of_heaviest = rehearse_group(alike_[heaviest]);
    v1::Rehearsal most = of_heaviest;
    // With the heaviest microbatches another group with the same part holds so much at most.
    const auto may_hold_more = [&](const AlikeRanks& group) {
      const int64_t more = group.bytes - alike_[heaviest].bytes;
      return more > 0 && (of_heaviest.peak_bytes() + more > most.peak_bytes() ||
                          of_heaviest.host_peak_bytes() + more > most.host_peak_bytes());
    };
    std::set<std::optional<int>> parts{alike_[heaviest].ranks.context_rank};
    for (size_t i = alike_.size(); i-- > 0;) {
      const bool is_new_part = parts.size() < kMostParts && !of_full_rows(alike_[heaviest]) &&
                               parts.insert(alike_[i].ranks.context_rank).second;
      if (is_new_part || may_hold_more(alike_[i])) take_larger(rehearse_group(alike_[i]), most);
    }
    return most;
  }

 private:
  size_t group_with_most_tokens() {
    const HeaviestMicrobatches& of_all = data_.training(spec_, config_);
    size_t group = alike_.size() - 1;
    // Full rows are as heavy on each.
    if (of_all.assumes_full_rows) return group;
    const int context_rank = of_all.steps.front().first.context_rank;
    const auto has_heaviest = [&](const RankChoice& ranks) {
      return ranks.context_rank == context_rank &&
             (ranks.data_ranks.empty() ||
              std::ranges::binary_search(ranks.data_ranks, of_all.rank));
    };
    while (group > 0 && !has_heaviest(alike_[group].ranks)) --group;
    return group;
  }

  // Of these any part of a stream is as heavy.
  bool of_full_rows(const AlikeRanks& group) {
    return data_.training(spec_, config_, group.ranks).assumes_full_rows;
  }

  static void take_larger(const v1::Rehearsal& other, v1::Rehearsal& most) {
    if (other.peak_bytes() > most.peak_bytes()) {
      most.set_rank(other.rank());
      most.set_peak_bytes(other.peak_bytes());
      *most.mutable_owners() = other.owners();
    }
    if (other.host_peak_bytes() > most.host_peak_bytes()) {
      most.set_host_peak_bytes(other.host_peak_bytes());
      *most.mutable_host_owners() = other.host_owners();
    }
    for (const v1::PhaseBytes& phase : other.phases()) {
      for (v1::PhaseBytes& of_most : *most.mutable_phases()) {
        if (of_most.phase() == phase.phase())
          of_most.set_peak_bytes(std::max(of_most.peak_bytes(), phase.peak_bytes()));
      }
    }
  }

  v1::Rehearsal rehearse_group(const AlikeRanks& group) {
    v1::Rehearsal result;
    result.set_world_size(spec_.parallelism().num_processes());
    result.set_device(spec_.resources().device());
    ledger_.reset_peak();
    TORCH_CHECK(ledger_.snapshot().current_bytes == 0, "a rehearsal began with tensors alive");
    run_group(group, result);
    const MemoryTotals device = ledger_.snapshot(Space::kDevice),
                       host = ledger_.snapshot(Space::kHost);
    result.set_peak_bytes(device.peak_bytes);
    *result.mutable_owners() = owner_bytes(device);
    *result.mutable_phases() = phase_bytes(device);
    result.set_host_peak_bytes(host.peak_bytes);
    *result.mutable_host_owners() = owner_bytes(host);
    return result;
  }

  void run_group(const AlikeRanks& group, v1::Rehearsal& result) {
    const HeaviestMicrobatches& heaviest = data_.training(spec_, config_, group.ranks);
    const HeavyStep& heavy = heaviest.steps.front();
    const int rank = heaviest.rank * spec_.parallelism().cp_size() + heavy.first.context_rank;
    const Mesh mesh = make_mesh(spec_, rank, options_);
    const CpuScratchScope scratch;
    rehearse_scoring(spec_, config_, data_, mesh);
    Rehearsed job(spec_, config_, mesh, data_, heaviest.microbatches_per_step);
    result.set_rank(rank);
    const ParameterCounts parameters = job.parameters();
    result.set_num_parameters(parameters.all);
    result.set_num_trainable_parameters(parameters.trainable);
    result.set_num_tokens(heavy.num_tokens(heaviest.microbatches_per_step));
    result.set_assumes_full_rows(heaviest.assumes_full_rows);
    job.step(heavy);
    set_cost(job.step(heavy), *result.mutable_cost());
    if (const auto cost = job.generation_cost()) set_cost(*cost, *result.mutable_generation_cost());
    for (const HeavyStep& other : heaviest.steps | std::views::drop(1)) job.step(other);
    if (is_uneven(scratch, ledger_)) {
      for (const HeavyStep& other : heaviest.next) job.step(other);
    }
    if (!spec_.data().eval().empty()) evaluate(group, scratch, job);
    // On a GPU the copy is none of the device's.
    if (spec_.resources().device() == "cpu" &&
        saves_between_steps(spec_.training(), heaviest.total_steps)) {
      const std::unique_ptr<Snapshot> saved = job.snapshot();
      job.step(heavy, saved.get());
      job.step(heavy);
    }
  }

  void evaluate(const AlikeRanks& group, const CpuScratchScope& scratch, Rehearsed& job) {
    const HeaviestMicrobatches& held_out = data_.held_out(spec_, config_, group.ranks);
    for (const HeavyStep& step : held_out.steps) job.evaluate(step.first);
    if (!is_uneven(scratch, ledger_)) return;
    for (const HeavyStep& step : held_out.next) job.evaluate(step.first);
  }

  const v1::JobSpec& spec_;
  const ModelConfig config_;
  RehearsalData& data_;
  const RehearsalOptions& options_;
  const std::vector<AlikeRanks> alike_;
  MemoryLedger& ledger_ = MemoryLedger::install_meta();
};

}  // namespace

v1::Rehearsal rehearse_decided(const v1::JobSpec& spec, RehearsalData& data,
                               const RehearsalOptions& options) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  MemoryLedger::install_meta();
  register_meta_operators();
  const StandInScope stand_in(stand_in_of(spec, options));
  const c10::AutoGradMode with_grad(true);
  const OwnerScope scope(Owner::kOther);
  return RankRehearsals(spec, data, options).run();
}

v1::Rehearsal rehearse(const v1::JobSpec& spec, RehearsalData& data,
                       const RehearsalOptions& options) {
  if (!spec::makes_completions(spec)) return rehearse_decided(spec, data, options);
  const GenerationChoice choice = choose_generation(spec, data, options);
  const bool is_cut =
      choice.spec.generation().kv_cache_memory() != spec.generation().kv_cache_memory();
  return is_cut ? rehearse_decided(choice.spec, data, options) : choice.rehearsal;
}

}  // namespace tessera
