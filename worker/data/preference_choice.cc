// Which of the preference formats a file's records have.
#include <nlohmann/json.hpp>

#include "worker/data/example_formats.h"
#include "worker/data/format_parts.h"
#include "worker/data/preference_format.h"

namespace tessera {
namespace {

class PreferenceChooser {
 public:
  PreferenceChooser(const ExampleOptions& options, const Tokenizer* tokenizer, const Record& first)
      : options_(options),
        tokenizer_(tokenizer),
        first_(first),
        parts_(options, tokenizer, first) {}

  std::unique_ptr<const ExampleFormat> choose() const {
    const bool is_reward = options_.kind == RecordKind::kReward;
    if (is_reward) {
      for (const auto& [chosen, rejected] : {std::pair("chosen_ids", "rejected_ids"),
                                             std::pair("chosen_input_ids", "rejected_input_ids")}) {
        if (first_.has(chosen) && first_.has(rejected)) {
          return make_pair_tokens_format(chosen, rejected, margin());
        }
      }
    }
    parts_.require_tokenizer(is_reward ? "chosen_ids and rejected_ids" : "input_ids");
    PreferenceFormatOptions format;
    format.fields = fields();
    format.value = value(format.fields);
    format.masks_prompt = !is_reward;
    format.shares_prompt = options_.kind == RecordKind::kDpo;
    if (is_conversation(format.fields)) {
      format.templates = parts_.chat_templates(format.fingerprint);
    } else {
      format.eos_token = parts_.eos_token();
    }
    format.fingerprint += "preference" + std::to_string(format.fields.completions.size()) +
                          (format.fields.has_prompt ? " prompt" : "");
    return make_preference_format(*tokenizer_, std::move(format), options_.note);
  }

 private:
  PreferenceFields fields() const {
    PreferenceFields fields;
    fields.has_prompt = first_.has("prompt");
    fields.extracts_prompt = options_.kind != RecordKind::kReward;
    if (first_.has("chosen") && first_.has("rejected")) {
      fields.completions = {"chosen", "rejected"};
      return fields;
    }
    if (options_.kind != RecordKind::kKto) {
      first_.fail("the first record must have \"chosen\" and \"rejected\"");
    }
    for (const char* field : {"prompt", "completion", "label"}) {
      if (first_.has(field)) continue;
      first_.fail("the first record has no \"" + std::string(field) +
                  "\": it must have \"prompt\", \"completion\" and \"label\", or \"chosen\" and "
                  "\"rejected\"");
    }
    fields.completions = {"completion"};
    return fields;
  }

  PreferenceValue value(const PreferenceFields& fields) const {
    switch (options_.kind) {
      case RecordKind::kKto:
        return fields.completions.size() == 1 ? PreferenceValue::kLabel : PreferenceValue::kPair;
      case RecordKind::kReward:
        return margin();
      default:
        return PreferenceValue::kNone;
    }
  }

  PreferenceValue margin() const {
    return first_.has("margin") ? PreferenceValue::kMargin : PreferenceValue::kNone;
  }

  // All of the fields, or none.
  bool is_conversation(const PreferenceFields& fields) const {
    std::vector<std::string> names = fields.completions;
    if (fields.has_prompt) names.emplace_back("prompt");
    const bool is_text = first_.is_string(names.front());
    for (const std::string& name : names) {
      if (is_text && first_.is_string(name)) continue;
      if (!is_text && is_list_with(first_, name, "role")) continue;
      first_.fail("\"" + name + "\" must be " +
                  (is_text ? "a string, as \"" + names.front() + "\" is"
                           : "a string, or a list of messages, objects with a role"));
    }
    return !is_text;
  }

  const ExampleOptions& options_;
  const Tokenizer* const tokenizer_;
  const Record& first_;
  const FormatParts parts_;
};

}  // namespace

std::unique_ptr<const ExampleFormat> choose_preference_format(const ExampleOptions& options,
                                                              const Tokenizer* tokenizer,
                                                              const Record& first) {
  return PreferenceChooser(options, tokenizer, first).choose();
}

}  // namespace tessera
