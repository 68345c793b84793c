#include "worker/data/format_parts.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "worker/data/example_formats.h"
#include "worker/data/json.h"
#include "worker/data/training_templates.h"

namespace tessera {
namespace {

// Of another tokenizer's templates, only that one is taken over.
void keep_default(ChatTemplateSources& sources) {
  std::erase_if(sources, [](const auto& source) { return source.first != "default"; });
}

void mark_generation(ChatTemplateSources& sources, const std::string& path) {
  const auto main = sources.find("default");
  if (main == sources.end() || has_generation_markers(main->second)) return;
  const auto marked = training_template(main->second);
  if (!marked) {
    throw UserError(kAssistantField,
                    "the chat template of " + path +
                        " does not say what the assistant says: it has no {% generation %}, and "
                        "is none that is known; give one as method.sft.chat_template_path");
  }
  sources = {{"default", *marked}};
}

}  // namespace

bool is_list_with(const Record& record, const std::string& field, const char* key) {
  if (!record.has(field) || record.is_string(field)) return false;
  const nlohmann::ordered_json list = record.json(field);
  return list.is_array() && !list.empty() && list.front().is_object() && list.front().contains(key);
}

void FormatParts::require_tokenizer(const std::string& tokens_field) const {
  if (tokenizer_ != nullptr) return;
  throw UserError("model.path", first_.place() + " holds no tokens (" + tokens_field +
                                    "), and there is no tokenizer to make some");
}

std::string FormatParts::eos_token() const {
  const bool is_given = !options_.eos_token.empty();
  const std::string eos = is_given ? options_.eos_token : tokenizer_->eos_token();
  const std::string charged = is_given ? field("eos_token") : kTokenizerField;
  if (eos.empty()) {
    throw UserError(charged, options_.tokenizer.string() + " names no eos_token" +
                                 (options_.has_eos_field ? "; give one as " + field("eos_token")
                                                         : ", which ends completions"));
  }
  if (!tokenizer_->id_of(eos)) {
    throw UserError(charged, "the eos_token \"" + eos + "\" is not in the vocabulary of " +
                                 options_.tokenizer.string());
  }
  return eos;
}

std::unique_ptr<const ChatTemplates> FormatParts::chat_templates(std::string& fingerprint) const {
  const auto& given = options_.chat_template_path;
  const std::string charged = given.empty() ? kTokenizerField : template_field();
  const auto& path = given.empty() ? options_.tokenizer : given;
  ChatTemplateSources sources = read_chat_templates(path, charged);
  if (sources.empty()) {
    const bool has_field = options_.kind != RecordKind::kPrompt;
    throw UserError(charged, path.string() + " has no chat template, which conversations need; " +
                                 (has_field ? "give one as " + template_field()
                                            : "put one there, as chat_template.jinja"));
  }
  if (!given.empty()) keep_default(sources);
  if (options_.assistant_only_loss) mark_generation(sources, path.string());
  ChatTemplates::Variables variables = tokenizer_->named_tokens();
  set_eos(variables);
  const std::time_t now = std::time(nullptr);
  fingerprint = "chat";
  bool tells_time = false;
  for (const auto& [name, source] : sources) {
    fingerprint += '\0' + name + '\0' + source;
    tells_time |= source.find("strftime_now") != std::string::npos;
  }
  for (const auto& [name, token] : variables) fingerprint += '\0' + name + '\0' + token;
  // Tokens that hold a date are of that day.
  if (tells_time) fingerprint += '\0' + std::to_string(now / (24 * 60 * 60));
  return std::make_unique<ChatTemplates>(sources, std::move(variables), now, charged);
}

// TRL takes the EOS token over from a directory that the template comes from.
void FormatParts::set_eos(ChatTemplates::Variables& variables) const {
  std::string eos = options_.eos_token.empty() ? "" : eos_token();
  const auto& given = options_.chat_template_path;
  if (std::filesystem::is_directory(given)) {
    const TokenizerConfig other = read_tokenizer_config(given, template_field());
    const std::string other_eos = other.content_of("eos_token");
    if (!other_eos.empty()) eos = other_eos;
    require_tokens(given, other);
  }
  if (eos.empty()) return;
  std::erase_if(variables, [](const auto& entry) { return entry.first == "eos_token"; });
  variables.emplace_back("eos_token", eos);
}

// TRL adds the other tokenizer's tokens to the vocabulary, and rows to the embedding. Here both
// stay as they are.
void FormatParts::require_tokens(const std::filesystem::path& directory,
                                 const TokenizerConfig& config) const {
  std::vector<std::string> tokens;
  for (const auto& named : config.named) tokens.push_back(named.token.content);
  for (const AddedToken& token : config.extra) tokens.push_back(token.content);
  for (const auto& [id, token] : config.added) tokens.push_back(token.content);
  if (std::filesystem::exists(directory / "tokenizer.json")) {
    const JsonFile file(directory / "tokenizer.json", template_field());
    const auto added = file.root().find("added_tokens");
    for (const JsonNode& token : added ? added->elements() : std::vector<JsonNode>()) {
      tokens.emplace_back(token.at("content").string());
    }
  }
  for (const std::string& token : tokens) {
    if (token.empty() || tokenizer_->id_of(token)) continue;
    throw UserError(template_field(), directory.string() + " has the token \"" + token +
                                          "\", which the vocabulary of " +
                                          options_.tokenizer.string() +
                                          " has not; name a .jinja file that does without it");
  }
}

}  // namespace tessera
