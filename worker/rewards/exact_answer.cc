#include <utf8proc.h>

#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "worker/data/utf8.h"
#include "worker/errors.h"
#include "worker/rewards/decimal.h"
#include "worker/rewards/pattern.h"
#include "worker/rewards/rules.h"

namespace tessera {
namespace {

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();
constexpr std::string_view kBlanks = " \t\r\n\f\v";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Case-folded as Unicode says.
std::string folded(std::string_view text) {
  const std::string valid = to_valid_utf8(text);
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()),
                   static_cast<utf8proc_ssize_t>(valid.size()), &out,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_CASEFOLD));
  if (size < 0) throw std::runtime_error(utf8proc_errmsg(size));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(out, &std::free);
  return {reinterpret_cast<const char*>(out), static_cast<size_t>(size)};
}

class ExactAnswer : public RewardRule {
 public:
  ExactAnswer(const v1::ExactAnswerReward& options, std::optional<Pattern> pattern)
      : options_(options), pattern_(std::move(pattern)) {}

  float score(const JudgedCompletion& completion) const override {
    const std::optional<std::string> answer = answer_of(completion.record);
    if (!answer) return kUnknown;
    if (!pattern_) return same(completion.completion, *answer) ? 1 : 0;
    const Pattern::LastGroup given = pattern_->last_group(completion.completion);
    if (given.search == Pattern::Search::kGaveUp) return kUnknown;
    return given.search == Pattern::Search::kFound && same(given.text, *answer) ? 1 : 0;
  }

 private:
  std::optional<std::string> answer_of(std::string_view record) const {
    const nlohmann::json fields = nlohmann::json::parse(record);
    const auto found = fields.find(options_.answer_field());
    if (found == fields.end()) return std::nullopt;
    if (found->is_string()) return found->get<std::string>();
    if (found->is_number()) return found->dump();
    return std::nullopt;
  }

  bool same(std::string_view given, std::string_view answer) const {
    given = trimmed(given);
    answer = trimmed(answer);
    if (options_.numeric()) {
      const std::optional<Decimal> number = parse_decimal(answer);
      if (number) return parse_decimal(given) == number;
    }
    return options_.ignore_case() ? folded(given) == folded(answer) : given == answer;
  }

  const v1::ExactAnswerReward options_;
  const std::optional<Pattern> pattern_;
};

}  // namespace

std::unique_ptr<RewardRule> make_exact_answer(const v1::ExactAnswerReward& options,
                                              const std::string& field) {
  std::optional<Pattern> pattern;
  if (options.has_pattern()) {
    const std::string name = field + ".pattern";
    const auto refuse = [&](const std::string& rest) {
      throw UserError(name, name + " is \"" + options.pattern() + "\"" + rest);
    };
    try {
      pattern.emplace(options.pattern());
    } catch (const std::invalid_argument& error) {
      refuse(std::string(": ") + error.what());
    }
    if (pattern->num_groups() == 0) refuse(", must hold a group, (...), that is the answer");
  }
  return std::make_unique<ExactAnswer>(options, std::move(pattern));
}

}  // namespace tessera
