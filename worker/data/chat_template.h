// The chat templates of a tokenizer's directory, applied as transformers' apply_chat_template does.
#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/data/jinja/template.h"

namespace tessera {

// Sources by name: "default", "tool_use" and so on.
using ChatTemplateSources = std::map<std::string, std::string>;

// Of a .jinja or .j2 file, or of a directory: chat_template.jinja and additional_chat_templates/,
// else tokenizer_config.json. Empty where there are none. Throws UserError(field).
ChatTemplateSources read_chat_templates(const std::filesystem::path& path,
                                        const std::string& field);

// Whether the template says which of its output the assistant said: {% generation %}.
bool has_generation_markers(std::string_view source);

// What a record says besides its messages. null: not given.
struct ChatOptions {
  nlohmann::ordered_json tools;
  nlohmann::ordered_json variables;  // an object; overrules `tools` and the special tokens
};

// Immutable: one serves all threads.
class ChatTemplates {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  // `special_tokens` are variables of the templates; `now` is what strftime_now tells. Throws
  // UserError(field) for one that does not parse. Requires sources.
  ChatTemplates(const ChatTemplateSources& sources, Variables special_tokens, std::time_t now,
                const std::string& field);

  // The text of a conversation: objects with role and content. Throws std::runtime_error with what
  // is wrong with it, or with the template.
  jinja::Rendered render(const nlohmann::ordered_json& messages, const ChatOptions& options,
                         bool add_generation_prompt) const;

 private:
  const jinja::Template& choose(bool has_tools) const;

  std::map<std::string, jinja::Template> templates_;
  Variables special_tokens_;
  std::time_t now_;
};

}  // namespace tessera
