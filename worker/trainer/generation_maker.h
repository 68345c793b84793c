// Generations of completions of a dataset's prompts: made by all ranks, and judged.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/live_rollouts.h"
#include "worker/data/prompt_records.h"
#include "worker/trainer/completion_maker.h"
#include "worker/trainer/rollout_judge.h"

namespace tessera {

// Some of an epoch, by number.
struct GenerationNumbers {
  int64_t epoch = 0;
  std::vector<int64_t> numbers;

  bool operator==(const GenerationNumbers&) const = default;
};

// What is made of them, those of a prompt one after the other. Not to be copied while it is judged.
struct MadeGenerations {
  GenerationNumbers of;
  std::vector<Rollout> rollouts;
  RolloutJudge::Judging judging;
};

class GenerationMaker {
 public:
  struct Parts {
    const LiveRollouts& rollouts;
    const PromptRecords* records;  // of these prompts, on world rank 0; else null
    // Who makes the completions of a generation; null: they are the data's own.
    std::function<CompletionMaker*(int64_t epoch, int64_t number)> maker_of;
    RolloutJudge* judge;  // null: nobody does
    uint64_t draw = 0;    // names the random numbers (make_draw), with
    int64_t seed = 0;
  };
  // All of them outlive this.
  explicit GenerationMaker(const Parts& parts) : parts_(parts) {}

  // Makes completions with the policy as it is after `step` steps, and begins to judge them.
  // `order`: the prompts, as the epoch has them. Collective.
  MadeGenerations begin(const GenerationNumbers& of, std::span<const int64_t> order, int step);
  // Begins to judge those that were made before.
  MadeGenerations begin_judging(const GenerationNumbers& of, std::span<const int64_t> order,
                                std::vector<Rollout> rollouts);
  // Waits until they are judged. Those of each generation, in the order of the numbers.
  // Collective. Throws as RolloutJudge::finish() does.
  std::vector<std::vector<Rollout>> finish(MadeGenerations made, int step);

  // Completions that they have together.
  int64_t size_of(const GenerationNumbers& of) const;

 private:
  // A prompt whose completions are to be there.
  struct Asked {
    CompletionMaker* maker;
    int64_t prompt;  // of the dataset
    PromptToComplete request;
    std::string group;
  };

  std::vector<Asked> asked(const GenerationNumbers& of, std::span<const int64_t> order) const;
  std::vector<std::vector<MadeCompletion>> complete(const std::vector<Asked>& asked) const;
  int64_t samples() const;
  int64_t first_prompt(int64_t number) const;
  std::span<const int64_t> prompts_of(int64_t number, std::span<const int64_t> order) const;

  const Parts parts_;
};

}  // namespace tessera
