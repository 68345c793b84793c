#include "worker/data/example_encoders.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "worker/data/example_formats.h"
#include "worker/data/json.h"
#include "worker/data/tokenizer_config.h"
#include "worker/data/training_templates.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

constexpr const char* kTemplateField = "method.sft.chat_template_path";
constexpr const char* kEosField = "method.sft.eos_token";

// Whether the field is a list whose first element is an object with `key`.
bool is_list_with(const Record& record, const std::string& field, const char* key) {
  if (!record.has(field) || record.is_string(field)) return false;
  const ordered_json list = record.json(field);
  return list.is_array() && !list.empty() && list.front().is_object() && list.front().contains(key);
}

class FormatChooser {
 public:
  FormatChooser(const ExampleOptions& options, const Tokenizer* tokenizer, const Record& first)
      : options_(options), tokenizer_(tokenizer), first_(first) {}

  // Decides as TRL does, in its order.
  std::unique_ptr<const ExampleFormat> choose() const {
    if (first_.has("input_ids")) return tokens();
    if (tokenizer_ == nullptr) {
      throw UserError("model.path", first_.place() +
                                        " holds no tokens (input_ids), and there is no tokenizer "
                                        "to make some");
    }
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
    return make_text_format(*tokenizer_, options_.text_field, eos_token());
  }

  std::unique_ptr<const ExampleFormat> completion() const {
    refuse_assistant_only();
    return make_completion_format(*tokenizer_,
                                  {.text_field = options_.text_field,
                                   .eos_token = eos_token(),
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
    auto templates = chat_templates(format.fingerprint);
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

  // Checked to be in the vocabulary.
  std::string eos_token() const {
    const bool is_given = !options_.eos_token.empty();
    const std::string eos = is_given ? options_.eos_token : tokenizer_->eos_token();
    const std::string field = is_given ? kEosField : kTokenizerField;
    if (eos.empty()) {
      throw UserError(field, options_.tokenizer.string() +
                                 " names no eos_token; give one as method.sft.eos_token");
    }
    if (!tokenizer_->id_of(eos)) {
      throw UserError(field, "the eos_token \"" + eos + "\" is not in the vocabulary of " +
                                 options_.tokenizer.string());
    }
    return eos;
  }

  std::unique_ptr<const ChatTemplates> chat_templates(std::string& fingerprint) const {
    const auto& given = options_.chat_template_path;
    const std::string field = given.empty() ? kTokenizerField : kTemplateField;
    const auto& path = given.empty() ? options_.tokenizer : given;
    ChatTemplateSources sources = read_chat_templates(path, field);
    if (sources.empty()) {
      throw UserError(field, path.string() +
                                 " has no chat template, which conversations need; give one as "
                                 "method.sft.chat_template_path");
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
    return std::make_unique<ChatTemplates>(sources, std::move(variables), now, field);
  }

  // TRL takes the EOS token over from a directory that the template comes from.
  void set_eos(ChatTemplates::Variables& variables) const {
    std::string eos = options_.eos_token.empty() ? "" : eos_token();
    const auto& given = options_.chat_template_path;
    if (std::filesystem::is_directory(given)) {
      const TokenizerConfig other = read_tokenizer_config(given, kTemplateField);
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
  void require_tokens(const std::filesystem::path& directory, const TokenizerConfig& config) const {
    std::vector<std::string> tokens;
    for (const auto& named : config.named) tokens.push_back(named.token.content);
    for (const AddedToken& token : config.extra) tokens.push_back(token.content);
    for (const auto& [id, token] : config.added) tokens.push_back(token.content);
    if (std::filesystem::exists(directory / "tokenizer.json")) {
      const JsonFile file(directory / "tokenizer.json", kTemplateField);
      const auto added = file.root().find("added_tokens");
      for (const JsonNode& token : added ? added->elements() : std::vector<JsonNode>()) {
        tokens.emplace_back(token.at("content").string());
      }
    }
    for (const std::string& token : tokens) {
      if (token.empty() || tokenizer_->id_of(token)) continue;
      throw UserError(kTemplateField, directory.string() + " has the token \"" + token +
                                          "\", which the vocabulary of " +
                                          options_.tokenizer.string() +
                                          " has not; name a .jinja file that does without it");
    }
  }

  // Of another tokenizer's templates, only that one is taken over.
  static void keep_default(ChatTemplateSources& sources) {
    std::erase_if(sources, [](const auto& source) { return source.first != "default"; });
  }

  static void mark_generation(ChatTemplateSources& sources, const std::string& path) {
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

  const ExampleOptions& options_;
  const Tokenizer* const tokenizer_;
  const Record& first_;
};

}  // namespace

std::unique_ptr<const ExampleFormat> make_example_format(const ExampleOptions& options,
                                                         const Tokenizer* tokenizer,
                                                         const Record& first) {
  return FormatChooser(options, tokenizer, first).choose();
}

}  // namespace tessera
