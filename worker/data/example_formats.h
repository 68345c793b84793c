// The formats that make_example_format chooses from.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "worker/data/chat_template.h"
#include "worker/data/example_encoders.h"
#include "worker/errors.h"

namespace tessera {

inline constexpr const char* kCompletionField = "method.sft.completion_only_loss";
inline constexpr const char* kAssistantField = "method.sft.assistant_only_loss";

// `text`, or the field of that meaning.
std::unique_ptr<const ExampleFormat> make_text_format(const Tokenizer& tokenizer,
                                                      std::string text_field,
                                                      std::string eos_token);

using Note = std::function<void(const std::string&)>;

struct CompletionFormatOptions {
  std::string text_field;
  std::string eos_token;
  bool completion_only = false;
};
// `prompt` and `completion`, both strings.
std::unique_ptr<const ExampleFormat> make_completion_format(const Tokenizer& tokenizer,
                                                            CompletionFormatOptions options,
                                                            Note note);

struct ChatFormatOptions {
  std::string messages_field;        // "messages" or "conversations"; empty: prompt and completion
  bool converts_from_value = false;  // messages say `from` and `value`
  bool completion_only = false;
  bool assistant_only = false;
  std::string fingerprint;
};
std::unique_ptr<const ExampleFormat> make_chat_format(
    const Tokenizer& tokenizer, std::unique_ptr<const ChatTemplates> templates,
    ChatFormatOptions options, Note note);

// The ids that a field lists are added to `tokens`. Throws UserError through record.fail.
void append_token_ids(const Record& record, const std::string& field, std::vector<int32_t>& tokens);

// `input_ids`, with `labels` or masks where the first record has them.
std::unique_ptr<const ExampleFormat> make_tokens_format(bool has_labels, bool has_completion_mask,
                                                        bool has_assistant_masks);

// Of records for DPO, KTO and reward models, for distillation, and of prompts.
std::unique_ptr<const ExampleFormat> choose_preference_format(const ExampleOptions& options,
                                                              const Tokenizer* tokenizer,
                                                              const Record& first);
std::unique_ptr<const ExampleFormat> choose_distillation_format(const ExampleOptions& options,
                                                                const Tokenizer* tokenizer,
                                                                const Record& first);
std::unique_ptr<const ExampleFormat> choose_prompt_format(const ExampleOptions& options,
                                                          const Tokenizer* tokenizer,
                                                          const Record& first);

// Runs `body`, and charges what it throws to the record.
template <typename Body>
void encode_or_fail(const Record& record, Body body) {
  try {
    body();
  } catch (const UserError&) {
    throw;
  } catch (const jinja::Error& error) {
    record.fail("the chat template cannot render the conversation: " + std::string(error.what()));
  } catch (const std::runtime_error& error) {
    record.fail(error.what());
  } catch (const std::invalid_argument& error) {
    record.fail(error.what());
  }
}

}  // namespace tessera
