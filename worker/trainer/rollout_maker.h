// Makes the completions that a step trains on, before it: prompts in TRL's order, completions of
// all ranks, and their rewards.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/v1/trainer.pb.h"
#include "worker/data/live_rollouts.h"
#include "worker/data/prompt_order.h"
#include "worker/data/prompt_records.h"
#include "worker/data/tokenizer.h"
#include "worker/rewards/judge.h"
#include "worker/trainer/completion_maker.h"
#include "worker/trainer/patience.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/rollout_recorder.h"

namespace tessera {

class RolloutMaker {
 public:
  struct Parts {
    const v1::TrainerInput& input;
    LiveRollouts& rollouts;
    TrainableModel& policy;
    const Mesh& mesh;
    at::Device device;
    Reporter& reporter;
    // Told what begins.
    std::function<void(Phase)> on_phase;
    // How long judging took, of that phase.
    std::function<void(std::chrono::steady_clock::duration)> on_judged;
  };
  // All of them outlive this. Throws UserError: a judge, or the engine, that cannot be made.
  explicit RolloutMaker(const Parts& parts);

  // After this, rows [begin, end) of the epoch are there: what is missing is made with the policy
  // as it is, and generations before them are dropped. `step`: steps taken. Collective. Throws
  // UserError: a reward that is needed and not given.
  void prepare(int64_t epoch, int64_t begin, int64_t end, int step);

  // The generation that the state is in the middle of, if it is in one.
  void save(v1::CheckpointState& state) const;
  // Takes it up. To be called before the first prepare(), with the cursor to go on from. Throws
  // UserError: it is none of this job.
  void resume(const v1::CheckpointState& state, int64_t epoch, int64_t row, bool goes_on);

 private:
  struct Missing {
    int64_t number = 0;
    std::vector<int64_t> prompts;  // of the dataset, in the order of the generation
    int64_t first_prompt = 0;      // place of the first of them in the epoch
  };

  Missing missing_generation(int64_t number) const;
  std::vector<Rollout> make(const std::vector<Missing>& missing);
  std::vector<Rollout> rollouts_of(const std::vector<Missing>& missing);
  void judge(const std::vector<Missing>& missing, std::vector<Rollout>& rollouts);
  std::vector<float> scores(const std::vector<Missing>& missing,
                            const std::vector<Rollout>& rollouts);
  void put(int64_t number, std::vector<Rollout> rollouts);
  void record(int64_t number, const std::vector<Rollout>& rollouts) const;
  std::string text_of(std::span<const int32_t> tokens, bool is_prompt) const;
  void still_judging();

  const Parts parts_;
  const v1::JobSpec spec_;  // the job's, of which generation.weights is decided
  const Tokenizer tokenizer_;
  const PromptOrder order_;
  CompletionMaker completions_;
  Patience patience_;
  // Of world rank 0; else null.
  std::unique_ptr<PromptRecords> records_;
  std::unique_ptr<Judges> judges_;
  std::optional<RolloutRecorder> recorder_;
  int64_t epoch_ = -1;  // that the rollouts are of
  int step_ = 0;
  bool has_warned_ = false;
  std::chrono::steady_clock::time_point last_sign_{};
};

}  // namespace tessera
