// An engine over the tiny model, as a job builds it.
#pragma once

#include <ATen/Parallel.h>

#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "tests/worker/trainer/tiny_step.h"
#include "worker/generate/engine.h"

namespace tessera::testing {

struct EngineCase {
  v1::JobSpec spec = plain_spec();
  ModelConfig config = tiny_config(/*tied=*/false);
  EngineOptions options = roomy();
  const Tokenizer* tokenizer = nullptr;

  static EngineOptions roomy() {
    EngineOptions options;
    options.num_pages = 200;
    return options;
  }
};

// A model, weights and engine of one rank.
struct EngineRank {
  EngineRank(const EngineCase& c, Collectives& group, at::Device device = at::kCPU)
      : trainable(build_model(c.spec, c.config, group, device)) {
    if (device.is_cpu()) {
      fill_weights(trainable, group.rank());
      trainable.weights_changed();
    }
    std::vector<ShardedUnit*> units;
    for (const auto& unit : trainable.units) units.push_back(unit.get());
    engine.emplace(Engine::Parts{*trainable.model, units, group, c.tokenizer}, c.options);
  }

  TrainableModel trainable;
  std::optional<Engine> engine;
};

// Prompts of many lengths, sampled; `samples` of each.
inline std::vector<GenerationRequest> sampled_requests(int64_t count, int64_t samples = 1) {
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    GenerationRequest request;
    for (int64_t t = 0; t < 3 + 11 * i % 40; ++t)
      request.prompt.push_back(static_cast<int32_t>((7 * t * t + i) % 37));
    request.sampling.max_new_tokens = 6 + 5 * i % 23;
    request.seeds.resize(samples);
    std::iota(request.seeds.begin(), request.seeds.end(), 100 * i);
    requests.push_back(std::move(request));
  }
  return requests;
}

inline std::vector<std::vector<int32_t>> tokens_of(const std::vector<Completion>& completions) {
  std::vector<std::vector<int32_t>> tokens;
  for (const Completion& completion : completions) tokens.push_back(completion.tokens);
  return tokens;
}

// What one rank makes of them.
inline std::vector<Completion> generate_alone(const EngineCase& c,
                                              const std::vector<GenerationRequest>& requests) {
  at::set_num_threads(1);
  const auto group = make_single_collectives();
  EngineRank rank(c, *group);
  return rank.engine->generate(requests);
}

// The same logic on `world_size` ranks, each with every world_size'th request: completions by
// request.
inline std::vector<std::vector<int32_t>> generate_on_ranks(
    const EngineCase& c, const std::vector<GenerationRequest>& requests, int world_size) {
  at::set_num_threads(1);
  std::vector<std::vector<int32_t>> tokens(requests.size());
  run_ranks(Backend::kThreads, world_size, [&](Collectives& group) {
    EngineRank rank(c, group);
    std::vector<GenerationRequest> own;
    for (size_t i = group.rank(); i < requests.size(); i += world_size) own.push_back(requests[i]);
    const std::vector<Completion> made = rank.engine->generate(own);
    // Ranks write to different elements.
    for (size_t i = 0; i < made.size(); ++i) tokens[group.rank() + i * world_size] = made[i].tokens;
  });
  return tokens;
}

}  // namespace tessera::testing
