#include <algorithm>
#include <vector>

#include "worker/rewards/rules.h"

namespace tessera {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\f\v";

// Takes `prefix` off the text, where it begins so.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

void skip_blanks(std::string_view& text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(kBlanks)));
}

class FormatRule : public RewardRule {
 public:
  explicit FormatRule(const v1::FormatReward& options) : text_after_(options.text_after()) {
    for (const std::string& tag : options.tags()) add(tag);
    if (elements_.empty()) add("think");
  }

  float score(const JudgedCompletion& completion) const override {
    return is_kept(completion.completion) ? 1 : 0;
  }

 private:
  struct Element {
    std::string open, close;
  };

  void add(const std::string& tag) { elements_.push_back({"<" + tag + ">", "</" + tag + ">"}); }

  bool is_kept(std::string_view text) const {
    const std::string_view all = text;
    for (const Element& element : elements_) {
      if (&element != &elements_.front()) skip_blanks(text);
      if (!take(text, element.open)) return false;
      const size_t end = text.find(element.close);
      if (end == std::string_view::npos) return false;
      text.remove_prefix(end + element.close.size());
      if (all.find(element.open) != all.rfind(element.open)) return false;
    }
    skip_blanks(text);
    return text_after_ || text.empty();
  }

  std::vector<Element> elements_;
  const bool text_after_;
};

}  // namespace

std::unique_ptr<RewardRule> make_format(const v1::FormatReward& options) {
  return std::make_unique<FormatRule>(options);
}

}  // namespace tessera
