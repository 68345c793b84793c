#include <limits>
#include <stdexcept>

#include "worker/errors.h"
#include "worker/rewards/pattern.h"
#include "worker/rewards/rules.h"

namespace tessera {
namespace {

class RegexRule : public RewardRule {
 public:
  explicit RegexRule(Pattern pattern) : pattern_(std::move(pattern)) {}

  float score(const JudgedCompletion& completion) const override {
    const std::optional<bool> matches = pattern_.matches(completion.completion);
    if (!matches) return std::numeric_limits<float>::quiet_NaN();
    return *matches ? 1 : 0;
  }

 private:
  const Pattern pattern_;
};

}  // namespace

std::unique_ptr<RewardRule> make_regex(const v1::RegexReward& options, const std::string& field) {
  try {
    return std::make_unique<RegexRule>(Pattern(options.pattern(), options.full_match()
                                                                      ? Pattern::Extent::kWhole
                                                                      : Pattern::Extent::kAnyPart));
  } catch (const std::invalid_argument& error) {
    const std::string name = field + ".pattern";
    throw UserError(name, name + " is \"" + options.pattern() + "\": " + error.what());
  }
}

}  // namespace tessera
