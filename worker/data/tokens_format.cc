// Documents that are tokens already.
#include <limits>
#include <nlohmann/json.hpp>

#include "worker/data/example_formats.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kIgnored = -100;  // the label of a token that does not count

class TokensFormat final : public ExampleFormat {
 public:
  TokensFormat(bool has_labels, bool has_completion_mask, bool has_assistant_masks)
      : has_labels_(has_labels),
        has_completion_mask_(has_completion_mask),
        has_assistant_masks_(has_assistant_masks) {}

  std::unique_ptr<ExampleEncoder> make_encoder() const override;
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  class Encoding;
  const bool has_labels_;
  const bool has_completion_mask_;
  const bool has_assistant_masks_;
  const std::string fingerprint_ = "tokens";
};

class TokensFormat::Encoding final : public ExampleEncoder {
 public:
  explicit Encoding(const TokensFormat& format) : format_(format) {}

  void encode(const Record& record, Example& example) override {
    example.clear();
    append_token_ids(record, "input_ids", example.tokens);
    if (format_.has_labels_) {
      apply_labels(record, example);
      return;
    }
    if (format_.has_completion_mask_) apply_mask(record, "completion_mask", example);
    if (format_.has_assistant_masks_) apply_mask(record, "assistant_masks", example);
  }

 private:
  static ordered_json column(const Record& record, const std::string& field, size_t size) {
    ordered_json values = record.json(field);
    if (!values.is_array() || values.size() != size) {
      record.fail("\"" + field + "\" must be a list as long as \"input_ids\"");
    }
    return values;
  }

  static void apply_labels(const Record& record, Example& example) {
    const ordered_json labels = column(record, "labels", example.tokens.size());
    example.loss_mask.resize(example.tokens.size());
    for (size_t i = 0; i < labels.size(); ++i) {
      const bool is_ignored = labels[i] == kIgnored;
      if (!is_ignored && labels[i] != example.tokens[i]) {
        record.fail("label " + std::to_string(i) + " is " + labels[i].dump() +
                    "; it must be -100, or the token " + std::to_string(example.tokens[i]));
      }
      example.loss_mask[i] = is_ignored ? 0 : 1;
    }
  }

  static void apply_mask(const Record& record, const std::string& field, Example& example) {
    const ordered_json mask = column(record, field, example.tokens.size());
    if (example.loss_mask.empty()) example.loss_mask.assign(example.tokens.size(), 1);
    for (size_t i = 0; i < mask.size(); ++i) {
      const bool is_off = mask[i] == 0 || mask[i] == false;
      if (!is_off && mask[i] != 1 && mask[i] != true) {
        record.fail("\"" + field + "\" holds " + mask[i].dump() + "; it must be 0 or 1");
      }
      if (is_off) example.loss_mask[i] = 0;
    }
  }

  const TokensFormat& format_;
};

std::unique_ptr<ExampleEncoder> TokensFormat::make_encoder() const {
  return std::make_unique<Encoding>(*this);
}

}  // namespace

void append_token_ids(const Record& record, const std::string& field,
                      std::vector<int32_t>& tokens) {
  const ordered_json ids = record.json(field);
  if (!ids.is_array()) record.fail("\"" + field + "\" must be a list of token ids");
  tokens.reserve(tokens.size() + ids.size());
  for (const auto& id : ids) {
    const bool is_id = id.is_number_integer() && id.get<int64_t>() >= 0 &&
                       id.get<int64_t>() <= std::numeric_limits<int32_t>::max();
    if (!is_id) record.fail("\"" + field + "\" holds " + id.dump() + ", which is no token id");
    tokens.push_back(id.get<int32_t>());
  }
}

std::unique_ptr<const ExampleFormat> make_tokens_format(bool has_labels, bool has_completion_mask,
                                                        bool has_assistant_masks) {
  return std::make_unique<TokensFormat>(has_labels, has_completion_mask, has_assistant_masks);
}

}  // namespace tessera
