// Records for distillation (GKD): conversations whose last message is the completion, as TRL's
// DataCollatorForChatML has them.
#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>

#include "worker/data/chat_record.h"
#include "worker/data/example_formats.h"
#include "worker/data/format_parts.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

struct DistillationOptions {
  std::unique_ptr<const ChatTemplates> templates;  // null: no record needs one
  bool has_tokens = false;                         // `input_ids`
  bool has_mask = false;                           // `completion_mask` beside them
  std::string prompt_field;  // text of the prompt; empty: all messages but the last are it
  std::string fingerprint;
};

class DistillationFormat final : public ExampleFormat {
 public:
  DistillationFormat(const Tokenizer* tokenizer, DistillationOptions options, Note note)
      : tokenizer_(tokenizer), options_(std::move(options)), note_(std::move(note)) {}

  std::unique_ptr<ExampleEncoder> make_encoder() const override;
  const std::string& fingerprint() const override { return options_.fingerprint; }

 private:
  class Encoding;
  void tell_unused(const Record& record) const;

  const Tokenizer* const tokenizer_;  // null only where has_mask
  const DistillationOptions options_;
  const Note note_;
  mutable std::atomic<bool> has_told_ = false;
};

void DistillationFormat::tell_unused(const Record& record) const {
  for (const char* field : {"tools", "chat_template_kwargs"}) {
    if (!record.has(field) || has_told_.exchange(true)) continue;
    note_(record.place() + ": \"" + field +
          "\" is not used: as in TRL, the chat template of GKD gets the messages only (said once)");
  }
}

// How many bytes are before each character, and how many there are.
std::vector<size_t> character_begins(std::string_view text) {
  std::vector<size_t> begins;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) begins.push_back(i);
  }
  begins.push_back(text.size());
  return begins;
}

class DistillationFormat::Encoding final : public ExampleEncoder {
 public:
  explicit Encoding(const DistillationFormat& format) : format_(format) {
    if (format.tokenizer_ != nullptr) encoder_.emplace(*format.tokenizer_);
  }

  void encode(const Record& record, Example& example) override {
    example.clear();
    const size_t prompt = encode_document(record, example.tokens);
    if (prompt == 0) record.fail("there is no prompt before the completion");
    example.loss_mask.assign(example.tokens.size(), 1);
    std::fill_n(example.loss_mask.begin(), std::min(prompt, example.tokens.size()), uint8_t{0});
  }

 private:
  // Returns how many of the tokens are the prompt's.
  size_t encode_document(const Record& record, std::vector<int32_t>& tokens) {
    const DistillationOptions& options = format_.options_;
    if (options.has_tokens) {
      append_token_ids(record, "input_ids", tokens);
      if (options.has_mask) return masked_prefix(record, tokens.size());
      return encoded_size(record, prompt_text(record));
    }
    format_.tell_unused(record);
    const std::string prompt = prompt_text(record);
    const std::string text = render(record, read_messages(record, "messages"), false);
    if (!format_.tokenizer_->is_byte_level()) {
      encode_or_fail(record, [&] { encoder_->encode(text, tokens, false); });
      return encoded_size(record, prompt);
    }
    offsets_.clear();
    encode_or_fail(record, [&] { encoder_->encode(text, tokens, offsets_, false); });
    return first_token_from(text, tokens, prompt.size());
  }

  // The first token that begins at that byte of the text or later. Offsets are of characters: of
  // tokens that share one, each has its own bytes of it.
  size_t first_token_from(std::string_view text, std::span<const int32_t> tokens,
                          size_t byte) const {
    const std::vector<size_t> places = character_begins(text);
    size_t cursor = 0;  // where the token before ends
    for (size_t i = 0; i < tokens.size(); ++i) {
      size_t begin = places[offsets_[i].begin], end = places[offsets_[i].end];
      const bool is_shared =
          begin < cursor || (i + 1 < tokens.size() && places[offsets_[i + 1].begin] < end);
      if (begin == end) begin = end = cursor;
      if (is_shared) {
        begin = std::max(begin, cursor);
        end = std::min(end, begin + format_.tokenizer_->bytes_of(tokens[i]).size());
      }
      if (begin >= byte) return i;
      cursor = end;
    }
    return tokens.size();
  }

  std::string prompt_text(const Record& record) const {
    const std::string& field = format_.options_.prompt_field;
    if (!field.empty()) return std::string(record.string(field));
    ordered_json messages = read_messages(record, "messages");
    messages.erase(messages.size() - 1);
    if (messages.empty()) record.fail("\"messages\" has no message before the last one");
    return render(record, messages, true);
  }

  std::string render(const Record& record, const ordered_json& messages,
                     bool add_generation_prompt) const {
    std::string text;
    encode_or_fail(record, [&] {
      text = format_.options_.templates->render(messages, {}, add_generation_prompt).text;
    });
    return text;
  }

  size_t encoded_size(const Record& record, const std::string& text) {
    std::vector<int32_t> tokens;
    encode_or_fail(record, [&] { encoder_->encode(text, tokens, false); });
    return tokens.size();
  }

  static size_t masked_prefix(const Record& record, size_t size) {
    const ordered_json mask = record.json("completion_mask");
    if (!mask.is_array() || mask.size() != size) {
      record.fail("\"completion_mask\" must be a list as long as \"input_ids\"");
    }
    const auto counts = [](const ordered_json& value) { return value == 1 || value == true; };
    return static_cast<size_t>(std::find_if(mask.begin(), mask.end(), counts) - mask.begin());
  }

  const DistillationFormat& format_;
  std::optional<Encoder> encoder_;
  std::vector<Span> offsets_;
};

std::unique_ptr<ExampleEncoder> DistillationFormat::make_encoder() const {
  return std::make_unique<Encoding>(*this);
}

}  // namespace

std::unique_ptr<const ExampleFormat> choose_distillation_format(const ExampleOptions& options,
                                                                const Tokenizer* tokenizer,
                                                                const Record& first) {
  const FormatParts parts(options, tokenizer, first);
  DistillationOptions format;
  format.has_tokens = first.has("input_ids");
  format.has_mask = format.has_tokens && first.has("completion_mask");
  format.fingerprint = "distillation";
  if (!format.has_mask) {
    parts.require_tokenizer("input_ids with completion_mask");
    for (const char* field : {"original_prompt_text", "prompt"}) {
      if (first.has(field)) format.prompt_field = field;
    }
    const bool needs_messages = !format.has_tokens || format.prompt_field.empty();
    if (needs_messages && !is_list_with(first, "messages", "role")) {
      first.fail("\"messages\" must be a list of messages, objects with a role");
    }
    if (needs_messages) format.templates = parts.chat_templates(format.fingerprint);
  }
  format.fingerprint += '\0' + format.prompt_field + (format.has_tokens ? " tokens" : "") +
                        (format.has_mask ? " mask" : "");
  return std::make_unique<DistillationFormat>(tokenizer, std::move(format), options.note);
}

}  // namespace tessera
