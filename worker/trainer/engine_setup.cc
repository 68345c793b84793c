#include "worker/trainer/engine_setup.h"

#include <algorithm>

#include "proto/spec/bytes.h"
#include "proto/spec/method_fields.h"
#include "proto/spec/online_relations.h"
#include "proto/spec/reward_relations.h"
#include "worker/errors.h"
#include "worker/kernels/cpu_kernels.h"

namespace tessera {
namespace {

constexpr char kCacheField[] = "generation.kv_cache_memory";

template <typename Options>
SamplingParams sampling_from(const Options& options) {
  SamplingParams sampling;
  sampling.temperature = options.temperature();
  sampling.top_p = options.top_p();
  sampling.top_k = options.top_k();
  sampling.min_p = options.min_p();
  sampling.repetition_penalty = options.repetition_penalty();
  return sampling;
}

int64_t longest_sequence(const v1::JobSpec& spec, const GenerationWork& work) {
  return work.longest_prompt + spec::longest_completion(spec.method());
}

void check_positions(const v1::JobSpec& spec, const ModelConfig& config,
                     const GenerationWork& work) {
  const int64_t most = config.rope.max_positions;
  if (most <= 0 || longest_sequence(spec, work) <= most) return;
  const spec::MethodFields fields = spec::method_fields(spec.method());
  const bool is_new_tokens = spec.method().has_online_dpo() || spec.method().has_gkd();
  const std::string field =
      fields.field(is_new_tokens ? "max_new_tokens" : "max_completion_length");
  throw UserError(field,
                  field + " is " + std::to_string(spec::longest_completion(spec.method())) +
                      ", must be at most " + std::to_string(most - work.longest_prompt) +
                      " after the longest prompt, of " + std::to_string(work.longest_prompt) +
                      " tokens: the model's max_position_embeddings are " + std::to_string(most));
}

// Of all that a rank makes at once, at their longest.
int64_t pages_of_all(const v1::JobSpec& spec, const GenerationWork& work) {
  const int64_t all = work.num_prompts * work.samples;
  const int64_t of_rank = (all + work.num_ranks - 1) / work.num_ranks;
  const int64_t running = std::min<int64_t>(of_rank, spec.generation().max_num_seqs());
  // Samples of a prompt share its whole pages.
  const int64_t shared = work.longest_prompt / kPageTokens;
  const int64_t prompts = std::min(running, (running + work.samples - 1) / work.samples + 1);
  return prompts * shared + running * (pages_for(longest_sequence(spec, work)) - shared);
}

int64_t num_pages(const v1::JobSpec& spec, const ModelConfig& config, const GenerationWork& work) {
  const CacheSizes sizes = cache_sizes(spec, config, work);
  const std::string& given = spec.generation().kv_cache_memory();
  if (given.empty()) return sizes.wanted / sizes.page;
  const int64_t bytes = spec::parse_bytes(given).value();
  if (bytes < sizes.least) {
    throw UserError(kCacheField, std::string(kCacheField) + " is " + given + ", must be at least " +
                                     spec::format_bytes(sizes.least) + ", which one sequence of " +
                                     std::to_string(longest_sequence(spec, work)) +
                                     " tokens takes");
  }
  return std::min(bytes, sizes.wanted) / sizes.page;
}

}  // namespace

GenerationWork generation_work(const v1::JobSpec& spec, int64_t longest_prompt) {
  const spec::GenerationPlan plan = spec::generation_plan(spec);
  GenerationWork work{.longest_prompt = longest_prompt,
                      .num_ranks = spec.parallelism().num_processes()};
  work.samples = spec.method().has_online_dpo() ? 2 : plan.num_generations;
  // A step may go on to further generations, which are then made together.
  const int64_t microbatches = spec.training().gradient_accumulation_steps();
  const int64_t of_generation = std::max<int64_t>(1, plan.steps_per_generation * plan.num_passes);
  const int64_t generations = (microbatches + of_generation - 1) / of_generation;
  work.num_prompts = generations * plan.rows / plan.num_generations;
  return work;
}

GenerationWork evaluation_work(const v1::JobSpec& spec, int64_t num_prompts,
                               int64_t longest_prompt) {
  GenerationWork work = generation_work(spec, longest_prompt);
  work.num_prompts = num_prompts;
  return work;
}

CacheSizes cache_sizes(const v1::JobSpec& spec, const ModelConfig& config,
                       const GenerationWork& work) {
  const at::ScalarType dtype = spec.model().dtype() == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const int64_t page = kv_page_bytes(config, dtype);
  return {.page = page,
          .least = page * pages_for(longest_sequence(spec, work)),
          .wanted = page * pages_of_all(spec, work)};
}

SamplingParams sampling_of(const v1::JobSpec& spec) {
  const v1::Method& method = spec.method();
  SamplingParams sampling;
  if (method.has_gkd()) sampling.temperature = method.gkd().temperature();
  if (method.has_grpo()) sampling = sampling_from(method.grpo());
  if (method.has_rloo()) sampling = sampling_from(method.rloo());
  if (method.has_online_dpo()) sampling = sampling_from(method.online_dpo());
  if (method.has_ppo()) sampling.temperature = method.ppo().temperature();
  sampling.max_new_tokens = spec::longest_completion(method);
  const auto& strings = spec.generation().stop_strings();
  sampling.stop_strings = {strings.begin(), strings.end()};
  return sampling;
}

EngineOptions engine_options(const v1::JobSpec& spec, const ModelConfig& config,
                             const GenerationWork& work) {
  check_positions(spec, config, work);
  const v1::Generation& generation = spec.generation();
  EngineOptions options;
  options.num_pages = num_pages(spec, config, work);
  options.limits = {.max_pass_tokens = generation.max_num_batched_tokens(),
                    .max_running = generation.max_num_seqs()};
  options.weights =
      generation.weights() == "layerwise" ? WeightMode::kLayerwise : WeightMode::kGather;
  options.merges_adapters = generation.merge_adapter();
  return options;
}

EngineOptions engine_options_beside(const EngineOptions& training, const v1::JobSpec& spec,
                                    const ModelConfig& config, const GenerationWork& work) {
  EngineOptions options = engine_options(spec, config, work);
  const int64_t least = pages_for(longest_sequence(spec, work));
  options.num_pages = std::min(options.num_pages, std::max(training.num_pages, least));
  return options;
}

SleepLevel sleep_of(const v1::JobSpec& spec) {
  return spec.generation().enable_sleep_mode() ? SleepLevel::kDrop : SleepLevel::kKeep;
}

}  // namespace tessera
