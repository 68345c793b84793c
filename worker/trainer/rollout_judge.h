// What completions are worth: world rank 0 has them judged while all ranks do other things, and
// then tells them.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/v1/trainer.pb.h"
#include "worker/data/rollouts.h"
#include "worker/data/tokenizer.h"
#include "worker/parallel/mesh.h"
#include "worker/rewards/judging_thread.h"
#include "worker/trainer/patience.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/reward_models.h"

namespace tessera {

class RolloutJudge {
 public:
  struct Parts {
    const v1::TrainerInput& input;
    const Tokenizer& tokenizer;
    RewardModels* reward_models;  // null: no model judges
    const Mesh& mesh;
    at::Device device;
    Reporter& reporter;
  };
  // All of them outlive this. Throws UserError: a judge that cannot be made.
  explicit RolloutJudge(const Parts& parts);

  // Of world rank 0; on others there is nothing in it.
  struct Judging {
    std::vector<JudgedCompletion> completions;
    std::future<std::vector<float>> scores;
  };
  // Begins to judge them, of a policy that took `step` steps. The records, of each rollout's
  // prompt, are needed on world rank 0 alone; they and the rollouts' tokens stay where they are
  // until finish().
  Judging begin(std::span<const Rollout> rollouts, std::span<const std::string_view> records,
                int step);
  // Waits, has models judge them, too, and sets the rollouts' rewards. `step`: steps taken by now.
  // Collective. Throws UserError: a server refused, or was waited for too long.
  void finish(Judging judging, std::span<Rollout> rollouts, int step);

 private:
  std::string text_of(std::span<const int32_t> tokens, bool is_prompt) const;
  std::vector<float> rewards_of(Judging judging);
  std::vector<float> wait(std::future<std::vector<float>> scores);
  void tell_of_waiting();
  void warn_of_unjudged(const Rollout& rollout);

  const Parts parts_;
  Patience patience_;
  std::unique_ptr<JudgingThread> thread_;  // of world rank 0; else null
  int step_ = 0;
  bool has_warned_ = false;
  std::string told_;  // what was said to be waited for
  std::chrono::steady_clock::time_point last_sign_{};
};

}  // namespace tessera
