// What a reward model reads of a completion: the prompt and it, as TRL's trainers write them for
// such a model. Source: GRPOTrainer._calculate_rewards in trl/trainer/grpo_trainer.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/chat_template.h"
#include "worker/data/tokenizer.h"

namespace tessera {

// By the tokenizer and the chat template of one directory. Used by one thread.
class RewardText {
 public:
  // `field` of the job file names the directory. Throws UserError(field): it holds no tokenizer, or
  // one that cannot be read; a chat template that does not parse.
  RewardText(const std::filesystem::path& directory, std::string field);

  // `record`: the prompt's, a JSON object. Of a prompt that is text, it and the completion, one
  // after the other; of messages, the conversation that the completion ends, by the chat template.
  // No other special tokens are added. Tokens at the end that batches are padded with are left out,
  // but for a first one: a model is not scored there. Empty: the tokenizer makes nothing of it, or
  // gave up.
  // Throws UserError(field): no chat template, or one that fails on the conversation.
  std::vector<int32_t> tokens(std::string_view record, const std::string& completion);

 private:
  std::string text_of(std::string_view record, const std::string& completion) const;

  const std::filesystem::path directory_;
  const std::string field_;
  const std::unique_ptr<const Tokenizer> tokenizer_;
  const std::unique_ptr<const ChatTemplates> templates_;  // null: there are none
  const int32_t padding_;                                 // -1: there is none
  Encoder encoder_;
};

}  // namespace tessera
