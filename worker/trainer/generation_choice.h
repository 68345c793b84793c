// What a job that makes completions leaves to the rehearsal: generation.weights auto, and without
// generation.kv_cache_memory how much of a cache fits resources.device_memory.
#pragma once

#include <cstdint>

#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"
#include "worker/trainer/rehearsal.h"
#include "worker/trainer/rehearsal_data.h"

namespace tessera {

struct GenerationChoice {
  v1::JobSpec spec;         // the job with all of it decided
  v1::Rehearsal rehearsal;  // with all of the cache that is wanted
  // Of the cache, all of it, and as much as fits; 0 where there is no bound.
  int64_t wanted_bytes = 0, fitting_bytes = 0;
};

// Gather is chosen where it fits with at least half of the cache that all completions want - half
// as many at a time take less time than gathering blocks in each pass does -, or where there is no
// bound; else layerwise. The cache is as large as it may be then, but no smaller than one sequence
// needs. Requires a job that makes completions. Throws as rehearse() does.
GenerationChoice choose_generation(const v1::JobSpec& spec, RehearsalData& data,
                                   const RehearsalOptions& options);

}  // namespace tessera
