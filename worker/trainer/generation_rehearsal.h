// What making completions takes, without data: a generation of the longest prompts, all of whose
// completions run to their longest. An evaluation's are made likewise, of all its prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "worker/data/rollout_dataset.h"
#include "worker/generate/engine.h"
#include "worker/kernels/work.h"
#include "worker/parallel/mesh.h"
#include "worker/trainer/engine_setup.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/reward_models.h"

namespace tessera {

class GenerationRehearsal {
 public:
  // All outlive this. Throws as engine_options() does. `rollouts`: of the job as
  // LongestRollouts has them. `policy`: who makes them. `reward_models`: null where none judges.
  GenerationRehearsal(const v1::JobSpec& spec, const RolloutDataset& rollouts,
                      TrainableModel& policy, RewardModels* reward_models, const Mesh& mesh);
  // Of an evaluation of the job, whose own completions `training` has: `spec` is
  // spec::evaluation_job().
  GenerationRehearsal(const v1::JobSpec& spec, const RolloutDataset& rollouts,
                      TrainableModel& policy, RewardModels* reward_models, const Mesh& mesh,
                      const GenerationRehearsal& training);

  // Allocates what the passes of a generation do, the exchange of what was made, and what reward
  // models do with it, if their tokenizers make as many tokens of it.
  void run();
  // What that does.
  WorkCount cost();
  // What a step does of it, on average over the steps, where so large a share of the generations
  // are made.
  WorkCount cost_of_step(double share);

 private:
  void deal(const std::vector<int64_t>& lengths);
  void make_engine(TrainableModel& policy, const EngineOptions& options);
  // Passes of prompts as the engine schedules them, then the last pass, when all are longest; and
  // where the cache does not hold all of them the heaviest that may run some again, a bound.
  void run_passes();
  void rehearse_rerun(int64_t longest);
  void judge();
  int64_t running() const;

  const v1::JobSpec& spec_;
  const Mesh& mesh_;
  RewardModels* const reward_models_;
  const SleepLevel sleep_;
  GenerationWork work_;
  EngineOptions options_;
  bool is_crowded_ = false;              // there are fewer pages than all completions want
  std::vector<int64_t> prompt_lengths_;  // of this rank's requests
  std::vector<int64_t> samples_;         // of each
  std::vector<int64_t> text_lengths_;    // of all ranks' completions, with their prompts
  std::optional<Engine> engine_;
};

}  // namespace tessera
