#include "worker/trainer/live_completions.h"

#include <numeric>
#include <utility>
#include <vector>

#include "proto/spec/online_relations.h"
#include "worker/data/job_data.h"
#include "worker/memory/attribution.h"
#include "worker/trainer/engine_setup.h"
#include "worker/trainer/generation_weights.h"

namespace tessera {
namespace {

constexpr uint64_t kEvaluationDraw = 0x6576616C;  // "eval" (make_draw)

}  // namespace

LiveCompletions::LiveCompletions(const Parts& parts)
    : parts_(parts),
      spec_(with_generation_weights(parts.input.spec(), parts.mesh, parts.device,
                                    parts.input.local_world_size())),
      tokenizer_(tokenizer_directory(spec_)) {
  const EngineOptions options = engine_options(
      spec_, parts.policy.model->config(), generation_work(spec_, parts.training.longest_prompt()));
  for_training_ = make_maker(parts.policy, options, sleep_of(spec_));
  if (spec::teacher_writes(spec_)) {
    of_teacher_ =
        make_maker(*parts.teacher,
                   engine_options(spec_, parts.teacher->model->config(),
                                  generation_work(spec_, parts.training.longest_prompt())),
                   sleep_of(spec_));
  }
  if (!spec_.reward_funcs().empty()) {
    judge_ =
        std::make_unique<RolloutJudge>(RolloutJudge::Parts{.input = parts.input,
                                                           .tokenizer = tokenizer_,
                                                           .reward_models = parts.reward_models,
                                                           .mesh = parts.mesh,
                                                           .device = parts.device,
                                                           .reporter = parts.reporter});
  }
  training_ = std::make_unique<RolloutMaker>(RolloutMaker::Parts{.spec = spec_,
                                                                 .rollouts = parts.training,
                                                                 .tokenizer = tokenizer_,
                                                                 .policy = *for_training_,
                                                                 .teacher = of_teacher_.get(),
                                                                 .judge = judge_.get(),
                                                                 .mesh = parts.mesh,
                                                                 .reporter = parts.reporter,
                                                                 .on_phase = parts.on_phase,
                                                                 .on_judged = parts.on_judged});
  if (parts.held_out != nullptr) add_held_out(options);
}

std::unique_ptr<CompletionMaker> LiveCompletions::make_maker(TrainableModel& model,
                                                             const EngineOptions& options,
                                                             SleepLevel sleep) {
  return std::make_unique<CompletionMaker>(
      CompletionMaker::Parts{.spec = spec_,
                             .tokenizer = tokenizer_,
                             .policy = model,
                             .mesh = parts_.mesh,
                             .device = parts_.device,
                             .sleep = sleep,
                             .on_transition =
                                 [this](const EngineTransition& transition) {
                                   parts_.reporter.generation(transition, step_);
                                 },
                             .alive = [this] { parts_.reporter.progress("generate", step_); }},
      options);
}

void LiveCompletions::add_held_out(const EngineOptions& of_training) {
  const LiveRollouts& rollouts = *parts_.held_out;
  const v1::JobSpec job = spec::evaluation_job(spec_);
  const EngineOptions options = engine_options_beside(
      of_training, job, parts_.policy.model->config(),
      evaluation_work(job, rollouts.prompts().size(), rollouts.longest_prompt()));
  for_held_out_ = make_maker(parts_.policy, options, SleepLevel::kDrop);
  if (parts_.mesh.world.rank() == 0) {
    DatasetOptions data = dataset_options(spec_, /*held_out=*/true, /*vocab_size=*/0);
    data.reports = parts_.reporter.data();
    records_ = std::make_unique<PromptRecords>(data);
  }
  held_out_ = std::make_unique<GenerationMaker>(
      GenerationMaker::Parts{.rollouts = rollouts,
                             .records = records_.get(),
                             .maker_of = [this](auto, auto) { return for_held_out_.get(); },
                             .judge = judge_.get(),
                             .draw = kEvaluationDraw,
                             .seed = spec_.training().seed()});
}

void LiveCompletions::prepare(const StepRows& rows, const std::optional<StepRows>& next, int step) {
  step_ = step + 1;
  training_->prepare(rows, next, step);
}

void LiveCompletions::make_held_out(int step) {
  const PhaseScope phase(Phase::kGenerate);
  LiveRollouts& rollouts = *parts_.held_out;
  rollouts.begin_epoch(0);
  GenerationNumbers all;
  all.numbers.resize(static_cast<size_t>(rollouts.num_generations()));
  std::iota(all.numbers.begin(), all.numbers.end(), int64_t{0});
  std::vector<int64_t> order(static_cast<size_t>(rollouts.prompts().size()));
  std::iota(order.begin(), order.end(), int64_t{0});
  step_ = step;
  std::vector<std::vector<Rollout>> made =
      held_out_->finish(held_out_->begin(all, order, step), step);
  for (size_t i = 0; i < made.size(); ++i)
    rollouts.put(static_cast<int64_t>(i), std::move(made[i]));
}

}  // namespace tessera
