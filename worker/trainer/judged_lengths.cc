#include "worker/trainer/judged_lengths.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "worker/data/job_data.h"
#include "worker/data/prompt_records.h"
#include "worker/data/reward_text.h"
#include "worker/errors.h"

namespace tessera {
namespace {

std::vector<int64_t> longest_prompts(const LiveRollouts& prompts, int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(prompts.prompts().size()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, std::greater(),
                           [&](int64_t prompt) { return prompts.prompt_tokens(prompt); });
  order.resize(std::min(order.size(), static_cast<size_t>(count)));
  return order;
}

// What the policy's tokens say, without any template.
std::string as_record(const Tokenizer& policy, const std::vector<int32_t>& tokens) {
  return nlohmann::json{{"prompt", policy.decode(tokens)}}.dump();
}

}  // namespace

int64_t JudgedLengths::of(size_t index, int64_t completion_tokens) const {
  return prompts[index] + std::llround(per_token * static_cast<double>(completion_tokens));
}

std::vector<JudgedLengths> judged_lengths(const v1::JobSpec& spec, const DatasetOptions& data,
                                          const LiveRollouts& prompts, int64_t count) {
  std::vector<JudgedLengths> all;
  if (std::ranges::none_of(spec.reward_funcs(), &v1::RewardFunc::has_model)) return all;
  try {
    const PromptRecords records(data);
    const Tokenizer policy(tokenizer_directory(spec));
    const std::vector<int64_t> longest = longest_prompts(prompts, count);
    for (int i = 0; i < spec.reward_funcs_size(); ++i) {
      if (!spec.reward_funcs(i).has_model()) continue;
      RewardText text(spec.reward_funcs(i).model().path(),
                      "reward_funcs[" + std::to_string(i) + "].model.path");
      JudgedLengths lengths;
      int64_t told = 0, of_policy = 0;
      for (const int64_t prompt : longest) {
        data.reports.alive();
        const std::string_view record = records.of(prompts.prompts().document(prompt));
        lengths.prompts.push_back(std::ssize(text.tokens(record, "")));
        const std::vector<int32_t> tokens = prompts.prompt(prompt);
        told += std::ssize(text.tokens(as_record(policy, tokens), ""));
        of_policy += std::ssize(tokens);
      }
      if (of_policy > 0)
        lengths.per_token = static_cast<double>(told) / static_cast<double>(of_policy);
      all.push_back(std::move(lengths));
    }
  } catch (const UserError&) {
    all.clear();  // the policy's have to do
  }
  return all;
}

}  // namespace tessera
