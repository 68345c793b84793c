#include "worker/data/example_encoders.h"

#include <nlohmann/json.hpp>

#include "worker/data/example_formats.h"
#include "worker/data/format_parts.h"

namespace tessera {
namespace {

class SftChooser {
 public:
  SftChooser(const ExampleOptions& options, const Tokenizer* tokenizer, const Record& first)
      : options_(options),
        tokenizer_(tokenizer),
        first_(first),
        parts_(options, tokenizer, first) {}

  // Decides as TRL does, in its order.
  std::unique_ptr<const ExampleFormat> choose() const {
    if (first_.has("input_ids")) return tokens();
    parts_.require_tokenizer("input_ids");
    const bool has_pairs = first_.has("prompt");
    if (has_pairs && !first_.has("completion")) {
      first_.fail("there is a prompt, but no completion");
    }
    if (has_pairs) {
      return first_.is_string("prompt") ? completion() : chat("", "prompt");
    }
    for (const auto* field : {"messages", "conversations"}) {
      if (first_.has(field) && !first_.is_string(field)) return chat(field, field);
    }
    if (!first_.has(options_.text_field)) {
      first_.fail("the first record has none of \"" + options_.text_field +
                  "\", \"messages\", \"conversations\", \"prompt\" with \"completion\", and "
                  "\"input_ids\"");
    }
    return text();
  }

 private:
  std::unique_ptr<const ExampleFormat> text() const {
    refuse_assistant_only();
    refuse_completion_only("the records have no prompt and completion");
    return make_text_format(*tokenizer_, options_.text_field, parts_.eos_token());
  }

  std::unique_ptr<const ExampleFormat> completion() const {
    refuse_assistant_only();
    return make_completion_format(*tokenizer_,
                                  {.text_field = options_.text_field,
                                   .eos_token = parts_.eos_token(),
                                   .completion_only = options_.completion_only_loss.value_or(true)},
                                  options_.note);
  }

  std::unique_ptr<const ExampleFormat> tokens() const {
    const bool has_labels = first_.has("labels");
    const bool has_assistant_masks = !has_labels && first_.has("assistant_masks");
    const bool has_mask = !has_labels && first_.has("completion_mask");
    if (!has_assistant_masks) refuse_assistant_only();
    if (!has_mask) refuse_completion_only("the records have no completion_mask");
    // As in TRL: unless it is asked for, a completion_mask counts beside its prompt and completion.
    const bool is_pair = first_.has("prompt") && first_.has("completion");
    return make_tokens_format(has_labels,
                              has_mask && options_.completion_only_loss.value_or(is_pair),
                              has_assistant_masks);
  }

  std::unique_ptr<const ExampleFormat> chat(const std::string& messages_field,
                                            const std::string& sample_field) const {
    ChatFormatOptions format;
    format.messages_field = messages_field;
    format.converts_from_value = is_list_with(first_, sample_field, "from");
    if (!format.converts_from_value && !is_list_with(first_, sample_field, "role")) {
      first_.fail("\"" + sample_field + "\" must be a list of messages, objects with a role");
    }
    const bool is_pair = messages_field.empty();
    if (!is_pair) refuse_completion_only("the records have no prompt and completion");
    format.completion_only = is_pair && options_.completion_only_loss.value_or(true);
    format.assistant_only = options_.assistant_only_loss;
    auto templates = parts_.chat_templates(format.fingerprint);
    return make_chat_format(*tokenizer_, std::move(templates), std::move(format), options_.note);
  }

  void refuse_assistant_only() const {
    if (!options_.assistant_only_loss) return;
    throw UserError(kAssistantField,
                    first_.place() +
                        ": assistant_only_loss needs conversations, but the records "
                        "have neither messages, nor a prompt that is a list of them, nor "
                        "assistant_masks");
  }

  void refuse_completion_only(const std::string& why) const {
    if (!options_.completion_only_loss.value_or(false)) return;
    throw UserError(kCompletionField,
                    first_.place() + ": completion_only_loss needs a completion, but " + why);
  }

  const ExampleOptions& options_;
  const Tokenizer* const tokenizer_;
  const Record& first_;
  const FormatParts parts_;
};

}  // namespace

std::unique_ptr<const ExampleFormat> make_example_format(const ExampleOptions& options,
                                                         const Tokenizer* tokenizer,
                                                         const Record& first) {
  switch (options.kind) {
    case RecordKind::kSft:
      return SftChooser(options, tokenizer, first).choose();
    case RecordKind::kDpo:
    case RecordKind::kKto:
    case RecordKind::kReward:
      return choose_preference_format(options, tokenizer, first);
    case RecordKind::kGkd:
      return choose_distillation_format(options, tokenizer, first);
    case RecordKind::kPrompt:
      return choose_prompt_format(options, tokenizer, first);
  }
  throw std::logic_error("no such kind of record");
}

}  // namespace tessera
