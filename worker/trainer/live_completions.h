// All that a job needs to make completions: of its prompts for training, and of held-out ones.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "tessera/v1/trainer.pb.h"
#include "worker/data/live_rollouts.h"
#include "worker/data/prompt_records.h"
#include "worker/data/tokenizer.h"
#include "worker/parallel/mesh.h"
#include "worker/trainer/completion_maker.h"
#include "worker/trainer/generation_maker.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/reward_models.h"
#include "worker/trainer/rollout_judge.h"
#include "worker/trainer/rollout_maker.h"

namespace tessera {

class LiveCompletions {
 public:
  struct Parts {
    const v1::TrainerInput& input;
    LiveRollouts& training;
    LiveRollouts* held_out = nullptr;  // null: there are none
    TrainableModel& policy;
    TrainableModel* teacher = nullptr;      // where it may write documents
    RewardModels* reward_models = nullptr;  // null: no model judges
    const Mesh& mesh;
    at::Device device;
    Reporter& reporter;
    // As in RolloutMaker::Parts.
    std::function<void(Phase)> on_phase;
    std::function<void(std::chrono::steady_clock::duration)> on_judged;
  };
  // All of them outlive this. Collective. Throws UserError: a judge, or an engine, that cannot be
  // made.
  explicit LiveCompletions(const Parts& parts);

  // See RolloutMaker.
  void prepare(const StepRows& rows, const std::optional<StepRows>& next, int step);
  RolloutMaker& training() { return *training_; }
  // Makes completions of all held-out prompts, by the policy as it is after `step` steps: of the
  // same seeds each time. Collective. Throws as RolloutMaker::prepare() does.
  void make_held_out(int step);

 private:
  std::unique_ptr<CompletionMaker> make_maker(TrainableModel& model, const EngineOptions& options,
                                              SleepLevel sleep);
  void add_held_out(const EngineOptions& of_training);

  const Parts parts_;
  const v1::JobSpec spec_;  // the job's, of which generation.weights is decided
  const Tokenizer tokenizer_;
  int step_ = 0;  // of what is told
  std::unique_ptr<CompletionMaker> for_training_, for_held_out_, of_teacher_;
  std::unique_ptr<PromptRecords> records_;  // of held-out prompts, on world rank 0; else null
  std::unique_ptr<RolloutMaker> training_;
  std::unique_ptr<GenerationMaker> held_out_;  // null: there are none
  // Null: no rewards are wanted. Goes before the makers: it reads what they hold.
  std::unique_ptr<RolloutJudge> judge_;
};

}  // namespace tessera
