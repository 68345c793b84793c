// Documents that are conversations.
#include <nlohmann/json.hpp>

#include "worker/data/chat_record.h"
#include "worker/data/example_formats.h"
#include "worker/data/jinja/text.h"
#include "worker/data/prompt_mask.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

class ChatFormat final : public ExampleFormat {
 public:
  ChatFormat(const Tokenizer& tokenizer, std::unique_ptr<const ChatTemplates> templates,
             ChatFormatOptions options, Note note)
      : tokenizer_(tokenizer),
        templates_(std::move(templates)),
        options_(std::move(options)),
        prompt_mask_(tokenizer, note) {
    if (options_.assistant_only && !learns_to_stop()) {
      note(
          "the chat template leaves the token that ends the assistant's turn out of {% generation "
          "%}: with method.sft.assistant_only_loss the model may not learn to stop");
    }
  }

  std::unique_ptr<ExampleEncoder> make_encoder() const override;
  const std::string& fingerprint() const override { return options_.fingerprint; }

 private:
  class Encoding;
  bool learns_to_stop() const;

  const Tokenizer& tokenizer_;
  const std::unique_ptr<const ChatTemplates> templates_;
  const ChatFormatOptions options_;
  const PromptMask prompt_mask_;
};

// The first token whose characters hold the one at `place`; none: tokens.size().
size_t token_at(const std::vector<Span>& offsets, int64_t place) {
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i].begin <= place && place < offsets[i].end) return i;
  }
  return offsets.size();
}

// 1 for the tokens of what the assistant said. As transformers has it: a range that ends in no
// token, or in the very first, takes all tokens to the end.
std::vector<uint8_t> assistant_mask(const std::vector<jinja::CharacterRange>& generated,
                                    const std::vector<Span>& offsets) {
  std::vector<uint8_t> mask(offsets.size(), 0);
  for (const auto& range : generated) {
    const size_t first = token_at(offsets, range.begin);
    if (first == offsets.size()) break;
    const size_t last = token_at(offsets, range.end - 1);
    const bool has_end = last != 0 && last != offsets.size();
    const size_t end = has_end ? last + 1 : offsets.size();
    for (size_t i = first; i < end; ++i) mask[i] = 1;
  }
  return mask;
}

// Whether the last token of an assistant's turn that counts, white space aside, is a special one.
bool ChatFormat::learns_to_stop() const {
  const auto turns = ordered_json::parse(R"([{"role": "user", "content": "dummy"},
      {"role": "assistant", "content": "dummy"}, {"role": "user", "content": "dummy"}])");
  std::vector<int32_t> tokens;
  std::vector<Span> offsets;
  try {
    const auto rendered = templates_->render(turns, {}, false);
    Encoder(tokenizer_).encode(rendered.text, tokens, offsets, false);
    const auto mask = assistant_mask(rendered.generated, offsets);
    for (size_t i = tokens.size(); i-- > 0;) {
      const std::vector<int32_t> token{tokens[i]};
      if (!mask[i] || jinja::strip(tokenizer_.decode(token)).empty()) continue;
      return tokenizer_.decode(token, /*skip_special_tokens=*/true).empty();
    }
  } catch (const std::exception&) {
    // A template may refuse such a conversation; what it does with others shows in the records.
  }
  return false;
}

class ChatFormat::Encoding final : public ExampleEncoder {
 public:
  explicit Encoding(const ChatFormat& format) : format_(format), encoder_(format.tokenizer_) {}

  void encode(const Record& record, Example& example) override {
    example.clear();
    const auto& options = format_.options_;
    const ChatOptions chat = read_chat_options(record);
    if (!options.messages_field.empty()) {
      encode_chat(record, messages(record, options.messages_field), chat, example);
      return;
    }
    refuse_generation_prompt(record, chat);
    ordered_json all = messages(record, "prompt");
    prompt_.clear();
    encode_or_fail(record, [&] {
      if (!options.completion_only) return;
      encoder_.encode(format_.templates_->render(all, chat, true).text, prompt_, false);
    });
    for (auto& message : messages(record, "completion")) all.push_back(std::move(message));
    encode_chat(record, all, chat, example);
    if (options.completion_only) format_.prompt_mask_.apply(prompt_, record, example);
  }

 private:
  ordered_json messages(const Record& record, const std::string& field) const {
    return read_messages(record, field, format_.options_.converts_from_value);
  }

  void encode_chat(const Record& record, const ordered_json& messages, const ChatOptions& chat,
                   Example& example) {
    encode_or_fail(record, [&] {
      const auto rendered = format_.templates_->render(messages, chat, false);
      if (!format_.options_.assistant_only) {
        encoder_.encode(rendered.text, example.tokens, false);
        return;
      }
      offsets_.clear();
      encoder_.encode(rendered.text, example.tokens, offsets_, false);
      example.loss_mask = assistant_mask(rendered.generated, offsets_);
    });
    if (!format_.options_.assistant_only) return;
    for (const uint8_t counts : example.loss_mask) {
      if (counts) return;
    }
    record.fail("no token is the assistant's, which " + std::string(kAssistantField) +
                " needs: the chat template must have {% generation %} around what it says");
  }

  const ChatFormat& format_;
  Encoder encoder_;
  std::vector<int32_t> prompt_;
  std::vector<Span> offsets_;
};

std::unique_ptr<ExampleEncoder> ChatFormat::make_encoder() const {
  return std::make_unique<Encoding>(*this);
}

}  // namespace

std::unique_ptr<const ExampleFormat> make_chat_format(
    const Tokenizer& tokenizer, std::unique_ptr<const ChatTemplates> templates,
    ChatFormatOptions options, Note note) {
  return std::make_unique<ChatFormat>(tokenizer, std::move(templates), std::move(options),
                                      std::move(note));
}

}  // namespace tessera
