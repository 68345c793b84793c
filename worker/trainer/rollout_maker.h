// Makes the completions that steps train on: prompts in TRL's order, completions of all ranks, and
// their rewards. Before the step that needs them, or with generation.async before the steps that
// train on those before them; then they are judged meanwhile.
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
#include "worker/trainer/completion_maker.h"
#include "worker/trainer/generation_maker.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/rollout_judge.h"
#include "worker/trainer/rollout_recorder.h"

namespace tessera {

// Those of an epoch that a step takes.
struct StepRows {
  int64_t epoch = 0, begin = 0, end = 0;
};

class RolloutMaker {
 public:
  struct Parts {
    const v1::JobSpec& spec;  // generation.weights is decided
    LiveRollouts& rollouts;
    const Tokenizer& tokenizer;
    CompletionMaker& policy;
    CompletionMaker* teacher = nullptr;  // where it writes documents
    RolloutJudge* judge = nullptr;       // null: nobody does
    const Mesh& mesh;
    Reporter& reporter;
    // Told what begins.
    std::function<void(Phase)> on_phase;
    // How long a step waited for rewards, of that phase.
    std::function<void(std::chrono::steady_clock::duration)> on_judged;
  };
  // All of them outlive this. Throws UserError: records that cannot be read.
  explicit RolloutMaker(const Parts& parts);

  // After this, the rows are there: what is missing was made ahead, or is made with the policy as
  // it is; generations before them are dropped. `next`: of the first step that needs others, which
  // are then made ahead, too; absent: nothing is. `step`: steps taken. Collective. Throws
  // UserError: a reward that is needed and not given; NonFiniteLogits.
  void prepare(const StepRows& rows, const std::optional<StepRows>& next, int step);

  // Optimizer steps that a policy which took `step` is ahead of the one that made the rows.
  // Requires that they are there.
  double staleness(const StepRows& rows, int step) const;

  // The generation that the state is in the middle of, if it is in one, and those made ahead.
  void save(v1::CheckpointState& state) const;
  // Takes them up. To be called before the first prepare(), with the cursor to go on from, and
  // `next` as that of prepare(), of the steps from there on. Throws UserError: they are none of
  // this job.
  void resume(const v1::CheckpointState& state, int64_t epoch, int64_t row,
              const std::optional<StepRows>& next, bool goes_on);

 private:
  GenerationNumbers missing_of(const StepRows& rows) const;
  CompletionMaker* maker_of(int64_t epoch, int64_t number) const;
  std::string text_of(std::span<const int32_t> tokens, bool is_prompt) const;
  MadeGenerations make(const GenerationNumbers& of);
  void put(MadeGenerations made);
  void put_generation(int64_t number, std::vector<Rollout> rollouts);
  void record(int64_t number, const std::vector<Rollout>& rollouts) const;
  void begin_recording(int64_t epoch, int64_t number, bool goes_on) const;
  void resume_ahead(std::string_view lines, const GenerationNumbers& of);

  const Parts parts_;
  const PromptOrder order_;
  const std::unique_ptr<PromptRecords> records_;  // of world rank 0; else null
  GenerationMaker maker_;
  std::optional<RolloutRecorder> recorder_;  // likewise
  std::optional<MadeGenerations> ahead_;     // of later steps
  int64_t epoch_ = -1;                       // that the rollouts are of
  int step_ = 0;
};

}  // namespace tessera
