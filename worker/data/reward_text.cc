#include "worker/data/reward_text.h"

#include <ctime>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "worker/errors.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

std::unique_ptr<const Tokenizer> read_tokenizer(const std::filesystem::path& directory,
                                                const std::string& field) {
  if (!has_tokenizer(directory)) {
    throw UserError(field, field + " is " + directory.string() +
                               ", must hold the reward model's tokenizer beside its weights");
  }
  try {
    return std::make_unique<const Tokenizer>(directory);
  } catch (const UserError& error) {
    throw UserError(field, field + ": " + error.what());
  }
}

std::unique_ptr<const ChatTemplates> read_templates(const std::filesystem::path& directory,
                                                    const std::string& field,
                                                    const Tokenizer& tokenizer) {
  const ChatTemplateSources sources = read_chat_templates(directory, field);
  if (sources.empty()) return nullptr;
  return std::make_unique<const ChatTemplates>(sources, tokenizer.named_tokens(),
                                               std::time(nullptr), field);
}

// TRL pads with the EOS token where there is no other.
int32_t padding_of(const Tokenizer& tokenizer) {
  const std::string& token =
      tokenizer.pad_token().empty() ? tokenizer.eos_token() : tokenizer.pad_token();
  return tokenizer.id_of(token).value_or(-1);
}

}  // namespace

RewardText::RewardText(const std::filesystem::path& directory, std::string field)
    : directory_(directory),
      field_(std::move(field)),
      tokenizer_(read_tokenizer(directory, field_)),
      templates_(read_templates(directory, field_, *tokenizer_)),
      padding_(padding_of(*tokenizer_)),
      encoder_(*tokenizer_) {}

std::string RewardText::text_of(std::string_view record, const std::string& completion) const {
  ordered_json prompt = ordered_json::parse(record).at("prompt");
  if (prompt.is_string()) return prompt.get<std::string>() + completion;
  if (templates_ == nullptr) {
    throw UserError(field_, field_ + " is " + directory_.string() +
                                ", must have a chat template: prompts are conversations");
  }
  prompt.push_back({{"role", "assistant"}, {"content", completion}});
  try {
    return templates_->render(prompt, {}, /*add_generation_prompt=*/false).text;
  } catch (const std::runtime_error& error) {
    throw UserError(
        field_, field_ + " is " + directory_.string() +
                    ", whose chat template fails on a prompt and its completion: " + error.what());
  }
}

std::vector<int32_t> RewardText::tokens(std::string_view record, const std::string& completion) {
  const std::string text = text_of(record, completion);
  std::vector<int32_t> tokens;
  try {
    encoder_.encode(text, tokens, /*add_special_tokens=*/false);
  } catch (const std::logic_error&) {
    return {};
  } catch (const std::runtime_error&) {
    return {};
  }
  while (tokens.size() > 1 && tokens.back() == padding_) tokens.pop_back();
  return tokens;
}

}  // namespace tessera
