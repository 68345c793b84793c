#include "worker/data/chat_template.h"

#include <algorithm>

#include "worker/data/json.h"
#include "worker/data/mapped_file.h"
#include "worker/data/utf8.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr const char* kAdditionalTemplates = "additional_chat_templates";

// Parameters of apply_chat_template itself, which a record's variables cannot set here.
constexpr std::string_view kReserved[] = {
    "chat_template",
    "conversation",
    "continue_final_message",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
};

std::string read_text(const std::filesystem::path& path, const std::string& field) {
  const MappedFile file(path, field);
  if (file.contents().size() > kMaxTemplateBytes) {
    throw UserError(field, path.string() + " has " + std::to_string(file.contents().size()) +
                               " bytes, must have " + std::to_string(kMaxTemplateBytes) +
                               " at most");
  }
  // A copy first: the file may change under us.
  std::string text(file.contents());
  if (!is_valid_utf8(text)) throw UserError(field, path.string() + " is not UTF-8");
  return text;
}

ChatTemplateSources of_tokenizer_config(const std::filesystem::path& path,
                                        const std::string& field) {
  ChatTemplateSources sources;
  if (!std::filesystem::exists(path)) return sources;
  const JsonFile file(path, field);
  const auto node = file.root().find("chat_template");
  if (!node) return sources;
  if (node->is_string()) return {{"default", std::string(node->string())}};
  for (const JsonNode& named : node->elements()) {
    sources[std::string(named.at("name").string())] = named.at("template").string();
  }
  return sources;
}

ChatTemplateSources of_directory(const std::filesystem::path& directory, const std::string& field) {
  ChatTemplateSources sources;
  const auto main = directory / "chat_template.jinja";
  if (std::filesystem::exists(main)) sources["default"] = read_text(main, field);
  if (std::filesystem::is_directory(directory / kAdditionalTemplates)) {
    for (const auto& entry :
         std::filesystem::directory_iterator(directory / kAdditionalTemplates)) {
      if (entry.path().extension() != ".jinja") continue;
      sources[entry.path().stem().string()] = read_text(entry.path(), field);
    }
  }
  return sources.empty() ? of_tokenizer_config(directory / "tokenizer_config.json", field)
                         : sources;
}

// Keys that are null go, as transformers drops them, and the reasoning is there under each of its
// names.
jinja::Value message_value(const ordered_json& message) {
  if (!message.is_object()) throw jinja::Error("a message must be an object with role and content");
  const ordered_json* reasoning = nullptr;
  for (const auto* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto there = message.find(name);
    if (there == message.end() || there->is_null()) continue;
    reasoning = &*there;
    break;
  }
  auto dict = std::make_shared<jinja::Dict>();
  if (reasoning) dict->set("thinking", jinja::from_json(*reasoning));
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) dict->set(key, jinja::from_json(value));
  }
  if (reasoning) dict->set("reasoning_content", jinja::from_json(*reasoning));
  return dict;
}

jinja::Value tools_value(const ordered_json& tools) {
  if (tools.is_null()) return {};
  if (!tools.is_array()) throw jinja::Error("tools must be a list, or JSON text of one");
  for (const auto& tool : tools) {
    if (!tool.is_object()) throw jinja::Error("each of tools must be an object (a JSON schema)");
  }
  return jinja::from_json(tools);
}

}  // namespace

ChatTemplateSources read_chat_templates(const std::filesystem::path& path,
                                        const std::string& field) {
  if (std::filesystem::is_directory(path)) return of_directory(path, field);
  if (path.extension() != ".jinja" && path.extension() != ".j2") {
    throw UserError(field, path.string() + " must be a .jinja or .j2 file, or a directory");
  }
  return {{"default", read_text(path, field)}};
}

bool has_generation_markers(std::string_view source) {
  for (size_t at = source.find("{%"); at != std::string_view::npos;
       at = source.find("{%", at + 2)) {
    auto tag = source.substr(at + 2);
    if (tag.starts_with('-')) tag.remove_prefix(1);
    tag.remove_prefix(std::min(tag.find_first_not_of(" \t\r\n"), tag.size()));
    if (!tag.starts_with("generation")) continue;
    tag.remove_prefix(std::string_view("generation").size());
    tag.remove_prefix(std::min(tag.find_first_not_of(" \t\r\n"), tag.size()));
    if (tag.starts_with('-')) tag.remove_prefix(1);
    if (tag.starts_with("%}")) return true;
  }
  return false;
}

ChatTemplates::ChatTemplates(const ChatTemplateSources& sources, Variables special_tokens,
                             std::time_t now, const std::string& field)
    : special_tokens_(std::move(special_tokens)), now_(now) {
  for (const auto& [name, source] : sources) {
    try {
      templates_.emplace(name, jinja::Template(source));
    } catch (const jinja::Error& error) {
      throw UserError(field, "the chat template '" + name + "' does not parse: " + error.what());
    }
  }
}

const jinja::Template& ChatTemplates::choose(bool has_tools) const {
  auto chosen = templates_.find(has_tools ? "tool_use" : "default");
  if (chosen == templates_.end()) chosen = templates_.find("default");
  if (chosen != templates_.end()) return chosen->second;
  throw jinja::Error("the tokenizer has several chat templates, but none named 'default'");
}

jinja::Rendered ChatTemplates::render(const ordered_json& messages, const ChatOptions& options,
                                      bool add_generation_prompt) const {
  std::vector<jinja::Value> values;
  for (const auto& message : messages) values.push_back(message_value(message));
  auto variables = std::make_shared<jinja::Dict>();
  for (const auto& [name, token] : special_tokens_) variables->set(name, token);
  variables->set("messages", jinja::Value::list(std::move(values)));
  variables->set("tools", tools_value(options.tools));
  variables->set("documents", jinja::Value());
  variables->set("add_generation_prompt", add_generation_prompt);
  bool has_tools = !options.tools.is_null();
  for (const auto& [name, value] : options.variables.items()) {
    if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
      throw jinja::Error("chat_template_kwargs cannot set '" + name + "'");
    }
    if (name == "tools") has_tools = !value.is_null();
    variables->set(name, name == "tools" ? tools_value(value) : jinja::from_json(value));
  }
  std::vector<std::pair<std::string, jinja::Value>> named;
  for (const auto& [name, value] : variables->entries) named.emplace_back(*name.string(), value);
  return choose(has_tools).render(named, now_);
}

}  // namespace tessera
