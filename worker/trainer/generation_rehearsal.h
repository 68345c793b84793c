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
#include "worker/trainer/judged_lengths.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/reward_models.h"

namespace tessera {

class GenerationRehearsal {
 public:
  struct Parts {
    const v1::JobSpec& spec;
    const RolloutDataset& rollouts;            // of the job, as LongestRollouts has them
    const std::vector<JudgedLengths>& judged;  // of these; empty: as the policy's
    TrainableModel& policy;                    // who makes them
    RewardModels* reward_models;               // null where none judges
    const Mesh& mesh;
  };
  // All outlive this. Throws as engine_options() does.
  explicit GenerationRehearsal(const Parts& parts);
  // Of an evaluation of the job, whose own completions `training` has: `parts.spec` is
  // spec::evaluation_job().
  GenerationRehearsal(const Parts& parts, const GenerationRehearsal& training);

  // Allocates what the passes of a generation do, the exchange of what was made, and what reward
  // models do with it, if their tokenizers make of completions what they make of prompts.
  void run();
  // What that does.
  WorkCount cost();
  // What a step does of it, on average over the steps, where so large a share of the generations
  // are made.
  WorkCount cost_of_step(double share);

 private:
  void deal(const std::vector<int64_t>& lengths);
  void set_text_lengths(const std::vector<int64_t>& lengths);
  void make_engine(TrainableModel& policy, const EngineOptions& options);
  // Passes of prompts as the engine schedules them, then the last pass, when all are longest; and
  // where the cache does not hold all of them the heaviest that may run some again, a bound.
  void run_passes();
  void rehearse_rerun(int64_t longest);
  void judge();
  int64_t running() const;

  const v1::JobSpec& spec_;
  const Mesh& mesh_;
  const std::vector<JudgedLengths>& judged_;
  RewardModels* const reward_models_;
  const SleepLevel sleep_;
  GenerationWork work_;
  EngineOptions options_;
  bool is_crowded_ = false;              // there are fewer pages than all completions want
  std::vector<int64_t> prompt_lengths_;  // of this rank's requests
  std::vector<int64_t> samples_;         // of each
  // Of all ranks' completions with their prompts, as each reward model reads them.
  std::vector<std::vector<int64_t>> text_lengths_;
  std::optional<Engine> engine_;
};

}  // namespace tessera
