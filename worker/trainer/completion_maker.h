// Completions of the policy as it is, made by all ranks together.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "worker/generate/deal.h"
#include "worker/generate/engine.h"
#include "worker/parallel/mesh.h"
#include "worker/trainer/engine_setup.h"
#include "worker/trainer/plan.h"

namespace tessera {

struct PromptToComplete {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> seeds;  // of each completion; all prompts have as many
};

struct MadeCompletion {
  std::vector<int32_t> tokens;
  std::vector<float> sampling_logprobs;  // as in Completion
  bool truncated = false;                // it came to the longest that completions may be
};

class CompletionMaker {
 public:
  struct Parts {
    const v1::JobSpec& spec;
    const Tokenizer& tokenizer;
    TrainableModel& policy;
    const Mesh& mesh;
    at::Device device;
    SleepLevel sleep = SleepLevel::kDrop;  // between calls
    std::function<void(const EngineTransition&)> on_transition;
    std::function<void()> alive;  // often, while it works
  };
  // All of them outlive this.
  CompletionMaker(const Parts& parts, EngineOptions options);

  // By prompt, then by seed; the same on all ranks. There is a prompt. Collective over the world.
  // Afterwards the engine sleeps. Throws NonFiniteLogits.
  std::vector<std::vector<MadeCompletion>> make(const std::vector<PromptToComplete>& prompts);

 private:
  // Of all that is made.
  struct Place {
    int64_t prompt = 0, sample = 0;
  };
  void submit(const std::vector<PromptToComplete>& prompts, const std::vector<DealtSamples>& dealt);
  void run(const std::vector<PromptToComplete>& prompts);
  bool meet(const std::vector<PromptToComplete>& prompts);
  RankLoad load(int64_t longest_prompt) const;
  void hand_over(const std::vector<PromptToComplete>& prompts,
                 const std::vector<SampleMove>& moves);
  Place place_of(int64_t request, int64_t sample) const;
  std::string packed(const std::vector<Completion>& completions) const;

  const Parts parts_;
  SamplingParams sampling_;
  int64_t num_pages_;
  int64_t max_running_;
  std::unique_ptr<Engine> engine_;
  std::map<int64_t, Place> places_;  // of the engine's requests: of their first samples
};

}  // namespace tessera
