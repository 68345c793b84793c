// Completions that were made for training, with what is known of them, as files record them
// (docs/data.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/data/dataset.h"

namespace tessera {

struct Rollout {
  std::vector<int32_t> prompt;      // tokens, 1 or more
  std::vector<int32_t> completion;  // likewise
  // For each token of the completion, 1 where the model made it, else 0. Empty: all.
  std::vector<uint8_t> mask;
  // Log-probabilities that the completion's tokens were sampled with; NaN: not known. Empty: of
  // none.
  std::vector<float> logprobs;
  std::vector<float> rewards;  // by name (Rollouts::reward_names); NaN: it cannot be judged so
  std::string group;           // of completions of one prompt; empty: not told
  bool truncated = false;      // it was cut off
  // Optimizer steps that were taken when the model made it; -1: not known.
  int64_t step = -1;
};

struct Rollouts {
  std::vector<Rollout> rollouts;  // in the order of the files
  std::vector<std::string> reward_names;
  bool has_logprobs = false;  // all of them, or none
  bool has_groups = false;    // likewise
};

// Reads the sources' files one after the other, all of them whatever max_documents: whether
// generations are whole, only all say. vocab_size as of all documents.
// Throws UserError naming file and line, or field: not readable, malformed, no rollouts, rewards
// that are missing or others than those of the first one, a token that the model does not have.
Rollouts read_rollouts(const DatasetOptions& options);

// The sum of a completion's rewards, each times its weight (`weights` empty: 1), those left out
// that are NaN; NaN where all are.
double total_reward(const Rollout& rollout, std::span<const double> weights);

}  // namespace tessera
