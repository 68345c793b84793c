// A prompt and what has been generated of one completion of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "worker/generate/request.h"
#include "worker/generate/stop_strings.h"

namespace tessera {

// What the samples of a request share.
struct RequestState {
  int64_t number = 0;
  GenerationRequest request;
  std::optional<StopStrings> stop_strings;  // refers to `request`
};

struct Sequence {
  int64_t id = 0;  // in the order of arrival: where memory is short, the latest give way
  std::shared_ptr<RequestState> of;
  int64_t sample = 0;  // of the request's seeds
  // Samples [sample + 1, sample + num_forks] begin where the prompt of this one ends.
  int64_t num_forks = 0;
  std::vector<int32_t> tokens;  // the prompt, then the completion
  int64_t num_cached = 0;       // of them: those whose keys and values are in the pages
  // By place of the tokens, kPageTokens each; kNoPage where no token to come sees them.
  std::vector<int32_t> pages;
  std::vector<float> logprobs, sampling_logprobs;  // of the completion

  const GenerationRequest& request() const { return of->request; }
  int64_t prompt_length() const { return std::ssize(request().prompt); }
  int64_t num_new() const { return std::ssize(tokens) - prompt_length(); }
  // Tokens to run before the next one can be sampled.
  int64_t num_pending() const { return std::ssize(tokens) - num_cached; }
  std::span<const int32_t> completion() const { return std::span(tokens).subspan(prompt_length()); }
};

}  // namespace tessera
