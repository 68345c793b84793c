#include "worker/trainer/rollout_judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "worker/parallel/byte_exchange.h"

namespace tessera {
namespace {

// While rank 0 waits for scores, the others hear of it so often.
constexpr auto kBetweenSigns = std::chrono::seconds(10);
// And so often it looks what it waits for.
constexpr auto kBetweenLooks = std::chrono::milliseconds(500);

}  // namespace

RolloutJudge::RolloutJudge(const Parts& parts)
    : parts_(parts), patience_(parts.mesh.world, parts.device, [this] {
        parts_.reporter.progress("reward", step_ + 1);
      }) {
  if (parts.mesh.world.rank() == 0)
    thread_ = std::make_unique<JudgingThread>(parts.input.spec(), parts.input.job_id());
}

std::string RolloutJudge::text_of(std::span<const int32_t> tokens, bool is_prompt) const {
  return parts_.tokenizer.decode(tokens, /*skip_special_tokens=*/!is_prompt);
}

RolloutJudge::Judging RolloutJudge::begin(std::span<const Rollout> rollouts,
                                          std::span<const std::string_view> records, int step) {
  Judging judging;
  if (thread_ == nullptr) return judging;
  for (size_t i = 0; i < rollouts.size(); ++i) {
    const Rollout& rollout = rollouts[i];
    judging.completions.push_back({.prompt = text_of(rollout.prompt, true),
                                   .completion = text_of(rollout.completion, false),
                                   .prompt_ids = rollout.prompt,
                                   .completion_ids = rollout.completion,
                                   .truncated = rollout.truncated,
                                   .record = records[i]});
  }
  judging.scores = thread_->judge(judging.completions, step);
  return judging;
}

void RolloutJudge::finish(Judging judging, std::span<Rollout> rollouts, int step) {
  step_ = step;
  const std::vector<float> of_all = rewards_of(std::move(judging));
  const auto count = static_cast<int64_t>(parts_.input.spec().reward_funcs_size());
  for (int64_t i = 0; i < std::ssize(rollouts); ++i) {
    const auto begin = of_all.begin() + i * count;
    std::vector<float>& rewards = rollouts[i].rewards;
    rewards.assign(begin, begin + count);
    for (float& reward : rewards) {
      if (!std::isfinite(reward)) reward = std::numeric_limits<float>::quiet_NaN();
    }
    if (std::ranges::all_of(rewards, [](float r) { return std::isnan(r); }))
      warn_of_unjudged(rollouts[i]);
  }
}

// float [completions][reward_funcs], the same on all ranks.
std::vector<float> RolloutJudge::rewards_of(Judging judging) {
  std::string bytes;
  if (thread_ != nullptr) {
    const std::vector<float> given = wait(std::move(judging.scores));
    bytes.assign(reinterpret_cast<const char*>(given.data()), given.size() * sizeof(float));
  }
  patience_.wait_for_all();
  bytes = broadcast_bytes(parts_.mesh.world, parts_.device, bytes);
  std::vector<float> rewards(bytes.size() / sizeof(float));
  std::memcpy(rewards.data(), bytes.data(), bytes.size());
  if (parts_.reward_models != nullptr) {
    parts_.reward_models->score(judging.completions, rewards,
                                [this] { parts_.reporter.progress("reward", step_ + 1); });
  }
  return rewards;
}

void RolloutJudge::warn_of_unjudged(const Rollout& rollout) {
  if (has_warned_) return;
  has_warned_ = true;
  const bool scores = parts_.input.spec().method().has_ppo();
  parts_.reporter.warn("no reward_funcs can judge the completion \"" +
                       text_of(rollout.completion, false).substr(0, 200) + "\": it " +
                       (scores ? "scores 0" : "does not count") + " (said once)");
}

// On world rank 0.
std::vector<float> RolloutJudge::wait(std::future<std::vector<float>> scores) {
  last_sign_ = std::chrono::steady_clock::now();
  while (scores.wait_for(kBetweenLooks) != std::future_status::ready) {
    parts_.reporter.progress("reward", step_ + 1);
    tell_of_waiting();
    const auto now = std::chrono::steady_clock::now();
    if (now - last_sign_ < kBetweenSigns) continue;
    last_sign_ = now;
    patience_.still_working();
  }
  tell_of_waiting();
  return scores.get();
}

void RolloutJudge::tell_of_waiting() {
  std::string reason = thread_->waits_for();
  if (reason == told_) return;
  told_ = std::move(reason);
  parts_.reporter.waiting(told_, step_ + 1);
}

}  // namespace tessera
