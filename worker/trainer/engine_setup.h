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
// Of its evaluation, of so many prompts. `spec` is spec::evaluation_job().
GenerationWork evaluation_work(const v1::JobSpec& spec, int64_t num_prompts,
                               int64_t longest_prompt);

// How tokens are chosen, without tokens that end a completion.
SamplingParams sampling_of(const v1::JobSpec& spec);

// Bytes of keys and values on a rank.
struct CacheSizes {
  int64_t page = 0;    // of a page
  int64_t least = 0;   // of the longest sequence
  int64_t wanted = 0;  // of all that is made at once, at its longest
};
CacheSizes cache_sizes(const v1::JobSpec& spec, const ModelConfig& config,
                       const GenerationWork& work);

// All but its callbacks. Throws UserError: a cache too small for the longest sequence, or one that
// is longer than the model's positions.
EngineOptions engine_options(const v1::JobSpec& spec, const ModelConfig& config,
                             const GenerationWork& work);
// Of another engine of the job, which takes no more of a cache than that of `training` does, but
// for its longest sequence. Throws likewise.
EngineOptions engine_options_beside(const EngineOptions& training, const v1::JobSpec& spec,
                                    const ModelConfig& config, const GenerationWork& work);

// Between generations.
SleepLevel sleep_of(const v1::JobSpec& spec);

}  // namespace tessera
