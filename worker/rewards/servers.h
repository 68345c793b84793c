// The servers of a job's reward_funcs, asked through tessera-rewards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "worker/rewards/frames.pb.h"
#include "worker/rewards/helper.h"
#include "worker/rewards/judge.h"

namespace tessera {

// Throws UserError naming reward_funcs[index].server: a file that is needed is not there.
void check_server(const v1::RewardServer& server, int index, const std::filesystem::path& program);

class RewardServers {
 public:
  // Both outlive this. The program is started when servers are first asked.
  RewardServers(const v1::JobSpec& spec, const Judges::Context& context,
                std::filesystem::path program);

  // False: no reward_funcs entry has one.
  bool any() const { return !indices_.empty(); }

  // Begins to ask all servers about these.
  void ask(std::span<const JudgedCompletion> completions, int32_t step);
  // Waits for their answers: float [num_completions][num reward_funcs] row-major, of which the
  // columns of servers are set. To be called once after ask(). Throws as Judges::judge does.
  void collect(std::span<float> scores);

 private:
  rewards::Question question(int index, std::span<const JudgedCompletion> completions,
                             int32_t step) const;
  // The next answer, while saying that this process lives.
  rewards::Answer next_answer();
  void note_waiting(int index, const std::string& reason);
  void take_scores(int index, const rewards::Scores& given, std::span<float> scores) const;
  std::string name_of(int index) const;

  const v1::JobSpec& spec_;
  const Judges::Context& context_;
  const std::filesystem::path program_;
  std::vector<int> indices_;  // of reward_funcs that are servers
  std::unique_ptr<RewardHelper> helper_;
  std::map<int, std::string> waiting_;  // why, by index
};

}  // namespace tessera
