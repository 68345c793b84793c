#include "worker/data/preference_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "worker/data/prompt_mask.h"

namespace tessera {
namespace {

float read_label(const Record& record) {
  const nlohmann::ordered_json label = record.json("label");
  if (label == true || label == 1) return 1;
  if (label != false && label != 0) {
    record.fail("\"label\" is " + label.dump() + "; it must be true or false");
  }
  return 0;
}

float read_margin(const Record& record) {
  if (!record.has("margin")) return 0;
  const nlohmann::ordered_json margin = record.json("margin");
  if (!margin.is_number()) record.fail("\"margin\" is " + margin.dump() + "; it must be a number");
  return margin.get<float>();
}

void add_values(const Record& record, PreferenceValue value, Example& example) {
  switch (value) {
    case PreferenceValue::kNone:
      break;
    case PreferenceValue::kLabel:
      example.values = {read_label(record)};
      break;
    case PreferenceValue::kPair:
      example.values = {1, 0};
      break;
    case PreferenceValue::kMargin:
      example.values.assign(2, read_margin(record));
      break;
  }
}

class PreferenceFormat final : public ExampleFormat {
 public:
  PreferenceFormat(const Tokenizer& tokenizer, PreferenceFormatOptions options, Note note)
      : tokenizer_(tokenizer),
        options_(std::move(options)),
        prompt_mask_(tokenizer, std::move(note)) {}

  std::unique_ptr<ExampleEncoder> make_encoder() const override;
  const std::string& fingerprint() const override { return options_.fingerprint; }
  int documents_per_record() const override {
    return static_cast<int>(options_.fields.completions.size());
  }

 private:
  class Encoding;

  const Tokenizer& tokenizer_;
  const PreferenceFormatOptions options_;
  const PromptMask prompt_mask_;
};

class PreferenceFormat::Encoding final : public ExampleEncoder {
 public:
  explicit Encoding(const PreferenceFormat& format)
      : format_(format),
        source_(format.options_.templates == nullptr
                    ? make_text_source(format.tokenizer_, format.options_.fields,
                                       format.options_.eos_token)
                    : make_chat_source(format.tokenizer_, format.options_.fields,
                                       *format.options_.templates)) {}

  void encode(const Record& record, Example& example) override {
    example.clear();
    const PreferenceFormatOptions& options = format_.options_;
    source_->read(record);
    for (size_t i = 0; i < options.fields.completions.size(); ++i) {
      const size_t begin = example.tokens.size();
      source_->encode(record, i, example.tokens);
      example.lengths.push_back(static_cast<int32_t>(example.tokens.size() - begin));
    }
    if (options.masks_prompt) mask_prompt(record, example);
    for (const int32_t length : example.lengths) {
      if (length == 0) record.fail("a document has no tokens");
    }
    add_values(record, options.value, example);
  }

 private:
  void mask_prompt(const Record& record, Example& example) {
    source_->encode_prompt(record, prompt_);
    begins_.clear();
    auto tokens = std::span<const int32_t>(example.tokens);
    for (const int32_t length : example.lengths) {
      begins_.push_back(
          format_.prompt_mask_.completion_begin(prompt_, tokens.first(length), record));
      tokens = tokens.subspan(length);
    }
    if (format_.options_.shares_prompt) {
      std::fill(begins_.begin(), begins_.end(), *std::min_element(begins_.begin(), begins_.end()));
    }
    example.loss_mask.assign(example.tokens.size(), 1);
    auto mask = example.loss_mask.begin();
    for (size_t i = 0; i < begins_.size(); ++i) {
      if (begins_[i] == static_cast<size_t>(example.lengths[i])) {
        record.fail("\"" + format_.options_.fields.completions[i] +
                    "\" adds no token to the prompt");
      }
      std::fill_n(mask, begins_[i], uint8_t{0});
      mask += example.lengths[i];
    }
  }

  const PreferenceFormat& format_;
  const std::unique_ptr<PreferenceSource> source_;
  std::vector<int32_t> prompt_;
  std::vector<size_t> begins_;  // of the completions
};

std::unique_ptr<ExampleEncoder> PreferenceFormat::make_encoder() const {
  return std::make_unique<Encoding>(*this);
}

class PairTokensFormat final : public ExampleFormat {
 public:
  PairTokensFormat(std::string chosen, std::string rejected, PreferenceValue value)
      : chosen_(std::move(chosen)), rejected_(std::move(rejected)), value_(value) {}

  std::unique_ptr<ExampleEncoder> make_encoder() const override;
  const std::string& fingerprint() const override { return fingerprint_; }
  int documents_per_record() const override { return 2; }

 private:
  class Encoding;
  const std::string chosen_, rejected_;
  const PreferenceValue value_;
  const std::string fingerprint_ = "pair tokens";
};

class PairTokensFormat::Encoding final : public ExampleEncoder {
 public:
  explicit Encoding(const PairTokensFormat& format) : format_(format) {}

  void encode(const Record& record, Example& example) override {
    example.clear();
    for (const std::string& field : {format_.chosen_, format_.rejected_}) {
      const size_t begin = example.tokens.size();
      append_token_ids(record, field, example.tokens);
      if (example.tokens.size() == begin) record.fail("\"" + field + "\" has no tokens");
      example.lengths.push_back(static_cast<int32_t>(example.tokens.size() - begin));
    }
    add_values(record, format_.value_, example);
  }

 private:
  const PairTokensFormat& format_;
};

std::unique_ptr<ExampleEncoder> PairTokensFormat::make_encoder() const {
  return std::make_unique<Encoding>(*this);
}

}  // namespace

std::unique_ptr<const ExampleFormat> make_preference_format(const Tokenizer& tokenizer,
                                                            PreferenceFormatOptions options,
                                                            Note note) {
  return std::make_unique<PreferenceFormat>(tokenizer, std::move(options), std::move(note));
}

std::unique_ptr<const ExampleFormat> make_pair_tokens_format(std::string chosen,
                                                             std::string rejected,
                                                             PreferenceValue value) {
  return std::make_unique<PairTokensFormat>(std::move(chosen), std::move(rejected), value);
}

}  // namespace tessera
