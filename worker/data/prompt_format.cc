// Prompts that completions are made of: text, or conversations up to where the assistant begins.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "worker/data/chat_record.h"
#include "worker/data/example_formats.h"
#include "worker/data/format_parts.h"

namespace tessera {
namespace {

class PromptFormat final : public ExampleFormat {
 public:
  // `templates`: of conversations; null: prompts are text.
  PromptFormat(const Tokenizer& tokenizer, std::unique_ptr<const ChatTemplates> templates,
               bool adds_special_tokens, std::string fingerprint)
      : tokenizer_(tokenizer),
        templates_(std::move(templates)),
        adds_special_tokens_(adds_special_tokens),
        fingerprint_(std::move(fingerprint)) {}

  std::unique_ptr<ExampleEncoder> make_encoder() const override;
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  class Encoding;
  const Tokenizer& tokenizer_;
  const std::unique_ptr<const ChatTemplates> templates_;
  const bool adds_special_tokens_;
  const std::string fingerprint_;
};

class PromptFormat::Encoding final : public ExampleEncoder {
 public:
  explicit Encoding(const PromptFormat& format) : format_(format), encoder_(format.tokenizer_) {}

  void encode(const Record& record, Example& example) override {
    example.clear();
    if (format_.templates_ == nullptr) {
      const std::string_view text = record.string("prompt");
      encode_or_fail(record,
                     [&] { encoder_.encode(text, example.tokens, format_.adds_special_tokens_); });
    } else {
      const nlohmann::ordered_json messages = read_messages(record, "prompt");
      const ChatOptions chat = read_chat_options(record);
      refuse_generation_prompt(record, chat);
      encode_or_fail(record, [&] {
        encoder_.encode(format_.templates_->render(messages, chat, true).text, example.tokens,
                        false);
      });
    }
    if (example.tokens.empty()) record.fail("the prompt has no token");
    example.loss_mask.assign(example.tokens.size(), 0);
  }

 private:
  const PromptFormat& format_;
  Encoder encoder_;
};

std::unique_ptr<ExampleEncoder> PromptFormat::make_encoder() const {
  return std::make_unique<Encoding>(*this);
}

}  // namespace

std::unique_ptr<const ExampleFormat> choose_prompt_format(const ExampleOptions& options,
                                                          const Tokenizer* tokenizer,
                                                          const Record& first) {
  const FormatParts parts(options, tokenizer, first);
  parts.require_tokenizer("prompts are never tokens");
  if (first.is_string("prompt")) {
    return std::make_unique<PromptFormat>(
        *tokenizer, nullptr, options.prompts_get_special_tokens,
        options.prompts_get_special_tokens ? "prompt" : "bare prompt");
  }
  if (!is_list_with(first, "prompt", "role")) {
    first.fail("\"prompt\" must be a text, or a list of messages, objects with a role");
  }
  std::string fingerprint;
  auto templates = parts.chat_templates(fingerprint);
  return std::make_unique<PromptFormat>(*tokenizer, std::move(templates), false,
                                        "prompt" + fingerprint);
}

}  // namespace tessera
