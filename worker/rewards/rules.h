// Rewards that follow from a completion's text and tokens alone. docs/rewards.md defines each.
#pragma once

#include <memory>
#include <string>

#include "worker/rewards/judge.h"

namespace tessera {

// Immutable. NaN: the completion cannot be judged.
class RewardRule {
 public:
  virtual ~RewardRule() = default;
  virtual float score(const JudgedCompletion& completion) const = 0;
};

// `field` is what errors begin with: "reward_funcs[0].regex". All throw UserError.
std::unique_ptr<RewardRule> make_exact_answer(const v1::ExactAnswerReward& options,
                                              const std::string& field);
std::unique_ptr<RewardRule> make_regex(const v1::RegexReward& options, const std::string& field);
std::unique_ptr<RewardRule> make_format(const v1::FormatReward& options);
// `max_tokens`: where the options have none.
std::unique_ptr<RewardRule> make_length(const v1::LengthReward& options, int64_t max_tokens);
std::unique_ptr<RewardRule> make_json_schema(const v1::JsonSchemaReward& options,
                                             const std::string& field);

}  // namespace tessera
