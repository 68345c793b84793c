// What formats need besides records: the token that ends a text, and chat templates.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "worker/data/chat_template.h"
#include "worker/data/example_encoders.h"
#include "worker/data/tokenizer_config.h"

namespace tessera {

// Whether the field is a list whose first element is an object with `key`.
bool is_list_with(const Record& record, const std::string& field, const char* key);

// Of a file whose first record is `first`. All of them outlive this.
class FormatParts {
 public:
  FormatParts(const ExampleOptions& options, const Tokenizer* tokenizer, const Record& first)
      : options_(options), tokenizer_(tokenizer), first_(first) {}

  // Throws UserError where there is none: the record lacks `tokens_field`, which would do without.
  void require_tokenizer(const std::string& tokens_field) const;
  // Throws UserError: there is none, or it is not in the vocabulary.
  std::string eos_token() const;
  // Sets `fingerprint` (ExampleFormat::fingerprint). Throws UserError: none, or it does not parse.
  std::unique_ptr<const ChatTemplates> chat_templates(std::string& fingerprint) const;

 private:
  std::string field(const char* name) const { return options_.method + "." + name; }
  std::string template_field() const { return field("chat_template_path"); }
  void set_eos(ChatTemplates::Variables& variables) const;
  void require_tokens(const std::filesystem::path& directory, const TokenizerConfig& config) const;

  const ExampleOptions& options_;
  const Tokenizer* const tokenizer_;
  const Record& first_;
};

}  // namespace tessera
