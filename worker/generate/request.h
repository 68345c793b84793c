// What is asked of the generation engine, and what it answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// How tokens are chosen. Names, defaults and order are those of transformers' GenerationConfig:
// repetition penalty, temperature, top_k, top_p, min_p; each acts on what the one before it left.
struct SamplingParams {
  double temperature = 1;         // logits are divided by it; 0: the most likely token, always
  int64_t top_k = 0;              // only so many of the most likely tokens; 0: all
  double top_p = 1;               // only the most likely ones that together reach this probability
  double min_p = 0;               // only those at least this share as likely as the likeliest
  double repetition_penalty = 1;  // > 1: tokens of prompt and completion become less likely
  int64_t max_new_tokens = 256;
  std::vector<int32_t> stop_tokens;       // each ends a completion, and is its last token
  std::vector<std::string> stop_strings;  // likewise the token that completes one in its text
};

// Throws UserError(field.NAME, ...) naming the first of them that is out of its bounds.
void check_sampling(const SamplingParams& sampling, const std::string& field);

// What was made of a completion elsewhere.
struct BegunCompletion {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, sampling_logprobs;  // as in Completion
};

struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  // One completion is made for each. Its random numbers are functions of its seed and the number of
  // the token, so that a sample depends on neither the others nor when it is made. Unused where
  // temperature is 0.
  std::vector<uint64_t> seeds = {0};
  // The completion goes on behind these, as if they had been made here; not at its end yet. Only of
  // a request with one seed.
  BegunCompletion begun = {};
};

enum class FinishReason : uint8_t { kStopToken, kStopString, kLength, kCancelled };

// "stop" for the first two, "length", "cancelled": as the field has it.
const char* finish_name(FinishReason reason);

struct Completion {
  int64_t request = 0;  // the number that submit() gave
  int64_t sample = 0;   // of its seeds
  std::vector<int32_t> tokens;
  // Of each token, by the model's own distribution: softmax of the logits as they are. vLLM calls
  // them raw_logprobs.
  std::vector<float> logprobs;
  // Of each token, by the distribution it was drawn from: after penalty and temperature, over the
  // tokens that top_k, top_p and min_p leave. vLLM calls them processed_logprobs, and TRL corrects
  // its importance weights by them. With temperature 0: after the penalty, over all tokens.
  std::vector<float> sampling_logprobs;
  FinishReason finish = FinishReason::kLength;
};

}  // namespace tessera
