#include "worker/data/preference_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "worker/data/chat_record.h"
#include "worker/data/example_formats.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Bytes of the prompt that two completions begin with: up to the first character that differs,
// without a space before it; of two that do not differ, all but the last character of the shorter.
size_t common_prompt(std::string_view one, std::string_view other) {
  const size_t shorter = std::min(one.size(), other.size());
  const auto differs = std::mismatch(one.begin(), one.begin() + shorter, other.begin());
  auto size = static_cast<size_t>(differs.first - one.begin());
  const bool is_whole = size == shorter;
  if (is_whole) --size;
  const std::string_view text = is_whole && other.size() < one.size() ? other : one;
  while (size > 0 && continues_character(text[size])) --size;
  if (!is_whole && size > 0 && text[size - 1] == ' ') --size;
  return size;
}

class TextSource final : public PreferenceSource {
 public:
  TextSource(const Tokenizer& tokenizer, const PreferenceFields& fields,
             const std::string& eos_token)
      : fields_(fields),
        eos_token_(eos_token),
        encoder_(tokenizer),
        completions_(fields.completions.size()) {}

  void read(const Record& record) override {
    prompt_.clear();
    if (fields_.has_prompt) prompt_ = record.string("prompt");
    for (size_t i = 0; i < completions_.size(); ++i) {
      completions_[i] = record.string(fields_.completions[i]);
    }
    if (!fields_.has_prompt && fields_.extracts_prompt) extract_prompt(record);
    for (std::string& completion : completions_) {
      if (!completion.ends_with(eos_token_)) completion += eos_token_;
    }
  }

  void encode_prompt(const Record& record, std::vector<int32_t>& tokens) override {
    tokens.clear();
    encode_or_fail(record, [&] { encoder_.encode(prompt_, tokens); });
  }

  void encode(const Record& record, size_t completion, std::vector<int32_t>& tokens) override {
    encode_or_fail(record, [&] { encoder_.encode(prompt_ + completions_[completion], tokens); });
  }

 private:
  void extract_prompt(const Record& record) {
    for (size_t i = 0; i < completions_.size(); ++i) {
      if (completions_[i].empty()) record.fail("\"" + fields_.completions[i] + "\" is empty");
    }
    const size_t size = common_prompt(completions_.front(), completions_.back());
    prompt_ = completions_.front().substr(0, size);
    for (std::string& completion : completions_) completion.erase(0, size);
  }

  const PreferenceFields& fields_;
  const std::string& eos_token_;
  Encoder encoder_;
  std::string prompt_;
  std::vector<std::string> completions_;
};

// Whatever the order of keys; a key without a value is none.
bool is_same_message(const ordered_json& one, const ordered_json& other) {
  const auto sorted = [](const ordered_json& message) {
    nlohmann::json entries = nlohmann::json::object();
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null()) entries[key] = value;
    }
    return entries;
  };
  return sorted(one) == sorted(other);
}

class ChatSource final : public PreferenceSource {
 public:
  ChatSource(const Tokenizer& tokenizer, const PreferenceFields& fields,
             const ChatTemplates& templates)
      : fields_(fields),
        templates_(templates),
        encoder_(tokenizer),
        completions_(fields.completions.size()) {}

  void read(const Record& record) override {
    options_ = read_chat_options(record);
    prompt_ = fields_.has_prompt ? read_messages(record, "prompt") : ordered_json::array();
    for (size_t i = 0; i < completions_.size(); ++i) {
      completions_[i] = read_messages(record, fields_.completions[i]);
    }
    if (!fields_.has_prompt && fields_.extracts_prompt) extract_prompt(record);
  }

  void encode_prompt(const Record& record, std::vector<int32_t>& tokens) override {
    refuse_generation_prompt(record, options_);
    tokens.clear();
    append(record, prompt_, /*add_generation_prompt=*/true, tokens);
  }

  void encode(const Record& record, size_t completion, std::vector<int32_t>& tokens) override {
    ordered_json all = prompt_;
    for (const auto& message : completions_[completion]) all.push_back(message);
    append(record, all, /*add_generation_prompt=*/false, tokens);
  }

 private:
  void append(const Record& record, const ordered_json& messages, bool add_generation_prompt,
              std::vector<int32_t>& tokens) {
    encode_or_fail(record, [&] {
      const auto rendered = templates_.render(messages, options_, add_generation_prompt);
      encoder_.encode(rendered.text, tokens, false);
    });
  }

  // As with text, at least the last message of the shorter one is no prompt.
  void extract_prompt(const Record& record) {
    ordered_json& one = completions_.front();
    ordered_json& other = completions_.back();
    const size_t most = std::min(one.size(), other.size()) - 1;
    size_t size = 0;
    while (size < most && is_same_message(one[size], other[size])) ++size;
    if (size == 0) {
      record.fail("there is no \"prompt\", and \"" + fields_.completions.front() + "\" and \"" +
                  fields_.completions.back() +
                  "\" do not begin with the same messages, which would be one");
    }
    const auto end = static_cast<std::ptrdiff_t>(size);
    prompt_ = ordered_json::array();
    prompt_.insert(prompt_.end(), one.begin(), one.begin() + end);
    for (ordered_json& completion : completions_) {
      completion.erase(completion.begin(), completion.begin() + end);
    }
  }

  const PreferenceFields& fields_;
  const ChatTemplates& templates_;
  Encoder encoder_;
  ChatOptions options_;
  ordered_json prompt_;
  std::vector<ordered_json> completions_;
};

}  // namespace

std::unique_ptr<PreferenceSource> make_text_source(const Tokenizer& tokenizer,
                                                   const PreferenceFields& fields,
                                                   const std::string& eos_token) {
  return std::make_unique<TextSource>(tokenizer, fields, eos_token);
}

std::unique_ptr<PreferenceSource> make_chat_source(const Tokenizer& tokenizer,
                                                   const PreferenceFields& fields,
                                                   const ChatTemplates& templates) {
  return std::make_unique<ChatSource>(tokenizer, fields, templates);
}

}  // namespace tessera
