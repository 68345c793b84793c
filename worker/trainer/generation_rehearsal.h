// What making completions takes, without data: a generation of the longest prompts, all of whose
// completions run to their longest.
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

namespace tessera {

class GenerationRehearsal {
 public:
  // All outlive this. Throws as engine_options() does. `rollouts`: of the job as
  // LongestRollouts has them.
  GenerationRehearsal(const v1::JobSpec& spec, const RolloutDataset& rollouts,
                      TrainableModel& policy, const Mesh& mesh);

  // Allocates what the passes of a generation do, and the exchange of what was made.
  void run();
  // What a step does of it, on average over the steps.
  WorkCount cost_of_step();

 private:
  // Passes of prompts as the engine schedules them, then the last pass, when all are longest.
  void run_passes();
  void fall_asleep();
  WorkCount cost_of_generation();
  int64_t running() const;

  const v1::JobSpec& spec_;
  const Mesh& mesh_;
  GenerationWork work_;
  std::vector<int64_t> prompt_lengths_;  // of this rank's requests
  std::vector<int64_t> samples_;         // of each
  std::optional<Engine> engine_;
};

}  // namespace tessera
