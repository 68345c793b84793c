// What a job says of the engine that makes its completions.
#pragma once

#include <cstdint>

#include "tessera/v1/job.pb.h"
#include "worker/generate/engine.h"
#include "worker/model/config.h"

namespace tessera {

// What is made at once, over all ranks.
struct GenerationWork {
  int64_t num_prompts = 1;
  int64_t samples = 1;         // of each
  int64_t longest_prompt = 1;  // in tokens
  int num_ranks = 1;
};
// Of a job whose prompts are at most so long.
GenerationWork generation_work(const v1::JobSpec& spec, int64_t longest_prompt);

// How tokens are chosen, without tokens that end a completion.
SamplingParams sampling_of(const v1::JobSpec& spec);

// All but its callbacks. Throws UserError: a cache too small for the longest sequence, or one that
// is longer than the model's positions.
EngineOptions engine_options(const v1::JobSpec& spec, const ModelConfig& config,
                             const GenerationWork& work);

}  // namespace tessera
