// Documents that are text: whole, or as prompt and completion.
#include "worker/data/example_formats.h"
#include "worker/data/prompt_mask.h"

namespace tessera {
namespace {

class TextFormat final : public ExampleFormat {
 public:
  TextFormat(const Tokenizer& tokenizer, std::string field, std::string eos_token)
      : tokenizer_(tokenizer), field_(std::move(field)), eos_token_(std::move(eos_token)) {}

  std::unique_ptr<ExampleEncoder> make_encoder() const override;
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  class Encoding;
  const Tokenizer& tokenizer_;
  const std::string field_;
  const std::string eos_token_;
  const std::string fingerprint_ = "text";
};

// One document a record: the text, and the EOS token where the text does not end with it.
class TextFormat::Encoding final : public ExampleEncoder {
 public:
  explicit Encoding(const TextFormat& format) : format_(format), encoder_(format.tokenizer_) {}

  void encode(const Record& record, Example& example) override {
    example.clear();
    text_ = record.string(format_.field_);
    if (!text_.ends_with(format_.eos_token_)) text_ += format_.eos_token_;
    encode_or_fail(record, [&] { encoder_.encode(text_, example.tokens); });
  }

 private:
  const TextFormat& format_;
  Encoder encoder_;
  std::string text_;
};

std::unique_ptr<ExampleEncoder> TextFormat::make_encoder() const {
  return std::make_unique<Encoding>(*this);
}

class CompletionFormat final : public ExampleFormat {
 public:
  CompletionFormat(const Tokenizer& tokenizer, CompletionFormatOptions options, Note note)
      : tokenizer_(tokenizer),
        options_(std::move(options)),
        prompt_mask_(tokenizer, std::move(note)) {}

  std::unique_ptr<ExampleEncoder> make_encoder() const override;
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  class Encoding;
  const Tokenizer& tokenizer_;
  const CompletionFormatOptions options_;
  const PromptMask prompt_mask_;
  const std::string fingerprint_ = "completion";
};

// The prompt and the completion as one text, the EOS token at its end.
class CompletionFormat::Encoding final : public ExampleEncoder {
 public:
  explicit Encoding(const CompletionFormat& format)
      : format_(format), encoder_(format.tokenizer_) {}

  void encode(const Record& record, Example& example) override {
    example.clear();
    text_ = record.string("prompt");
    const std::string_view completion = record.string("completion");
    const auto& options = format_.options_;
    prompt_.clear();
    encode_or_fail(record, [&] {
      if (options.completion_only) encoder_.encode(text_, prompt_);
      text_ += completion;
      if (needs_eos(record, completion)) text_ += options.eos_token;
      encoder_.encode(text_, example.tokens);
    });
    if (options.completion_only) format_.prompt_mask_.apply(prompt_, record, example);
  }

 private:
  // As TRL has it: where the record has a text, too, that one gets the EOS token first.
  bool needs_eos(const Record& record, std::string_view completion) const {
    const auto& options = format_.options_;
    if (record.has(options.text_field) &&
        !record.string(options.text_field).ends_with(options.eos_token)) {
      return false;
    }
    return !completion.ends_with(options.eos_token);
  }

  const CompletionFormat& format_;
  Encoder encoder_;
  std::string text_;
  std::vector<int32_t> prompt_;
};

std::unique_ptr<ExampleEncoder> CompletionFormat::make_encoder() const {
  return std::make_unique<Encoding>(*this);
}

}  // namespace

std::unique_ptr<const ExampleFormat> make_text_format(const Tokenizer& tokenizer,
                                                      std::string text_field,
                                                      std::string eos_token) {
  return std::make_unique<TextFormat>(tokenizer, std::move(text_field), std::move(eos_token));
}

std::unique_ptr<const ExampleFormat> make_completion_format(const Tokenizer& tokenizer,
                                                            CompletionFormatOptions options,
                                                            Note note) {
  return std::make_unique<CompletionFormat>(tokenizer, std::move(options), std::move(note));
}

}  // namespace tessera
