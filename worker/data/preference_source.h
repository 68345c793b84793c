// Prompts with completions, as text or as conversations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/data/chat_template.h"
#include "worker/data/record.h"
#include "worker/data/tokenizer.h"

namespace tessera {

// Which fields of a record hold them.
struct PreferenceFields {
  std::vector<std::string> completions;  // one or two
  bool has_prompt = true;                // there is a field "prompt"
  // Without one, what the two completions have in common at their beginning is the prompt, as TRL's
  // extract_prompt has it; else there is no prompt.
  bool extracts_prompt = false;
};

// The record at hand. One a thread.
class PreferenceSource {
 public:
  virtual ~PreferenceSource() = default;
  // Throws UserError through record.fail, as the others do.
  virtual void read(const Record& record) = 0;
  // Replaces `tokens` with those of the prompt alone.
  virtual void encode_prompt(const Record& record, std::vector<int32_t>& tokens) = 0;
  // Appends those of the prompt with a completion.
  virtual void encode(const Record& record, size_t completion, std::vector<int32_t>& tokens) = 0;
};

// Strings: the EOS token comes after completions that do not end with it. What is handed in
// outlives the source.
std::unique_ptr<PreferenceSource> make_text_source(const Tokenizer& tokenizer,
                                                   const PreferenceFields& fields,
                                                   const std::string& eos_token);

// Lists of messages: a prompt ends where the assistant is to begin.
std::unique_ptr<PreferenceSource> make_chat_source(const Tokenizer& tokenizer,
                                                   const PreferenceFields& fields,
                                                   const ChatTemplates& templates);

}  // namespace tessera
