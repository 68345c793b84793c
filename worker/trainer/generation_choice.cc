#include "worker/trainer/generation_choice.h"

#include <algorithm>
#include <string>
#include <utility>

#include "proto/spec/bytes.h"
#include "proto/spec/online_relations.h"
#include "worker/data/rollout_dataset.h"
#include "worker/memory/attribution.h"
#include "worker/trainer/engine_setup.h"
#include "worker/trainer/stream_share.h"

namespace tessera {
namespace {

// Most bytes while there is a cache.
int64_t peak_with_cache(const v1::Rehearsal& rehearsal, const v1::JobSpec& spec) {
  if (!spec.generation().enable_sleep_mode()) return rehearsal.peak_bytes();
  for (const v1::PhaseBytes& phase : rehearsal.phases()) {
    if (phase.phase() == phase_name(Phase::kGenerate)) return phase.peak_bytes();
  }
  return 0;
}

// What the engine of training takes of a cache, and at least that of evaluation.
CacheSizes cache_of(const v1::JobSpec& spec, RehearsalData& data) {
  const ModelConfig config = read_model_config(spec.model().path());
  const auto sizes_of = [&](const v1::JobSpec& job, bool held_out) {
    const RolloutDataset& rollouts = *data.rollouts(spec, held_out, config);
    const auto longest = std::ssize(rollouts.generation(0).rollouts.front().prompt);
    return cache_sizes(job, config, generation_work(job, longest));
  };
  CacheSizes sizes = sizes_of(spec, /*held_out=*/false);
  if (!spec::evaluates_completions(spec)) return sizes;
  const CacheSizes of_evaluation = sizes_of(spec::evaluation_job(spec), /*held_out=*/true);
  sizes.least = std::max(sizes.least, of_evaluation.least);
  return sizes;
}

// Sequences that do not fit are run again, which takes memory, too: so the cache is cut until what
// is rehearsed fits.
void cut_cache(const CacheSizes& sizes, int64_t limit, RehearsalData& data,
               const RehearsalOptions& options, GenerationChoice& choice) {
  for (int64_t excess = 1; excess > 0 && choice.fitting_bytes > sizes.least;) {
    const int64_t bytes = choice.fitting_bytes / sizes.page * sizes.page;
    choice.spec.mutable_generation()->set_kv_cache_memory(std::to_string(bytes));
    excess = peak_with_cache(rehearse_decided(choice.spec, data, options), choice.spec) - limit;
    if (excess > 0) choice.fitting_bytes = bytes - std::max(excess, sizes.page);
  }
  if (choice.fitting_bytes > sizes.least) return;
  choice.spec.mutable_generation()->set_kv_cache_memory(std::to_string(sizes.least));
}

GenerationChoice weigh(v1::JobSpec spec, const char* weights, RehearsalData& data,
                       const RehearsalOptions& options) {
  GenerationChoice choice{.spec = std::move(spec)};
  choice.spec.mutable_generation()->set_weights(weights);
  choice.rehearsal = rehearse_decided(choice.spec, data, options);
  if (!choice.spec.resources().has_device_memory()) return choice;
  const int64_t limit = spec::parse_device_memory(choice.spec.resources().device_memory()).value();
  const int64_t excess =
      std::max<int64_t>(0, peak_with_cache(choice.rehearsal, choice.spec) - limit);
  const CacheSizes sizes = cache_of(choice.spec, data);
  choice.wanted_bytes = sizes.wanted;
  choice.fitting_bytes = sizes.wanted - excess;
  // A cache that the user gives is not cut.
  const bool is_given = !choice.spec.generation().kv_cache_memory().empty();
  if (is_given && excess > 0) choice.fitting_bytes = 0;
  if (is_given || excess == 0) return choice;
  cut_cache(sizes, limit, data, options, choice);
  return choice;
}

}  // namespace

GenerationChoice choose_generation(const v1::JobSpec& spec, RehearsalData& data,
                                   const RehearsalOptions& options) {
  const std::string& wish = spec.generation().weights();
  const MeshShape mesh = mesh_shape(spec.parallelism());
  const bool is_whole = mesh.dp_shard * mesh.cp == 1;  // nothing is gathered
  GenerationChoice gathered =
      weigh(spec, wish == "layerwise" ? "layerwise" : "gather", data, options);
  const bool fits = 2 * gathered.fitting_bytes >= gathered.wanted_bytes;
  if (wish != "auto" || is_whole || fits) return gathered;
  return weigh(spec, "layerwise", data, options);
}

}  // namespace tessera
