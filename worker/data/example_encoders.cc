#include "worker/data/example_encoders.h"

#include <stdexcept>

#include "worker/errors.h"

namespace tessera {
namespace {

// One document a record: the text, and the EOS token where the text does not end with it.
class TextEncoder final : public ExampleEncoder {
 public:
  TextEncoder(const Tokenizer& tokenizer, const std::string& field, const std::string& eos_token)
      : field_(field), eos_token_(eos_token), encoder_(tokenizer) {}

  void encode(const Record& record, Example& example) override {
    example.clear();
    text_ = record.string(field_);
    if (!text_.ends_with(eos_token_)) text_ += eos_token_;
    try {
      encoder_.encode(text_, example.tokens);
    } catch (const std::runtime_error& error) {
      record.fail(error.what());
    }
  }

 private:
  const std::string& field_;
  const std::string& eos_token_;
  Encoder encoder_;
  std::string text_;
};

class TextFormat final : public ExampleFormat {
 public:
  TextFormat(const Tokenizer& tokenizer, std::string field, std::string eos_token)
      : tokenizer_(tokenizer), field_(std::move(field)), eos_token_(std::move(eos_token)) {}

  std::unique_ptr<ExampleEncoder> make_encoder() const override {
    return std::make_unique<TextEncoder>(tokenizer_, field_, eos_token_);
  }
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  const Tokenizer& tokenizer_;
  const std::string field_;
  const std::string eos_token_;
  const std::string fingerprint_ = "text";
};

std::string eos_token_of(const ExampleOptions& options, const Tokenizer& tokenizer) {
  const bool given = !options.eos_token.empty();
  const std::string eos = given ? options.eos_token : tokenizer.eos_token();
  const std::string field = given ? "method.sft.eos_token" : kTokenizerField;
  if (eos.empty()) {
    throw UserError(field, options.tokenizer.string() +
                               " names no eos_token; give one as method.sft.eos_token");
  }
  if (!tokenizer.id_of(eos)) {
    throw UserError(field, "the eos_token \"" + eos + "\" is not in the vocabulary of " +
                               options.tokenizer.string());
  }
  return eos;
}

}  // namespace

std::unique_ptr<const ExampleFormat> make_example_format(const ExampleOptions& options,
                                                         const Tokenizer& tokenizer,
                                                         const Record&) {
  return std::make_unique<TextFormat>(tokenizer, options.text_field,
                                      eos_token_of(options, tokenizer));
}

}  // namespace tessera
