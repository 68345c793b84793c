#include "worker/rewards/rules.h"

namespace tessera {
namespace {

class LengthRule : public RewardRule {
 public:
  LengthRule(int64_t min_tokens, int64_t max_tokens, int64_t cache)
      : min_tokens_(min_tokens), max_tokens_(max_tokens), cache_(cache) {}

  float score(const JudgedCompletion& completion) const override {
    const auto length = static_cast<int64_t>(completion.completion_ids.size());
    if (length < min_tokens_ || length > max_tokens_) return -1;
    const int64_t free = max_tokens_ - cache_;
    if (length <= free) return 0;
    return static_cast<float>(static_cast<double>(free - length) / static_cast<double>(cache_));
  }

 private:
  const int64_t min_tokens_, max_tokens_, cache_;
};

}  // namespace

std::unique_ptr<RewardRule> make_length(const v1::LengthReward& options, int64_t max_tokens) {
  return std::make_unique<LengthRule>(options.min_tokens(), max_tokens,
                                      options.soft_punish_cache());
}

}  // namespace tessera
