// Completions that all ranks make together.
#include "worker/trainer/completion_maker.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <numeric>

#include "tests/worker/data/fixtures.h"
#include "tests/worker/generate/tiny_engine.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using Made = std::vector<std::vector<MadeCompletion>>;

constexpr int64_t kSamples = 24;
constexpr int kLongest = 120;

// Prompts of one length of which the likeliest completions end early, and never.
struct Prompts {
  std::vector<int32_t> early, late;
  int32_t end_token = -1;
};

Prompts choose_prompts() {
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < 30; ++i) {
    requests.push_back({.prompt = {i, (3 * i + 1) % 37, (7 * i) % 37}});
    requests.back().sampling = {.temperature = 0, .max_new_tokens = kLongest};
  }
  const auto tokens = testing::tokens_of(testing::generate_alone({}, requests));
  for (int32_t end = 0; end < 37; ++end) {
    Prompts prompts{.end_token = end};
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto at = std::ranges::find(tokens[i], end) - tokens[i].begin();
      if (at < 8) prompts.early = requests[i].prompt;
      if (at == kLongest) prompts.late = requests[i].prompt;
    }
    if (!prompts.early.empty() && !prompts.late.empty()) return prompts;
  }
  return {};
}

v1::JobSpec make_job(const std::filesystem::path& model, int world_size, const char* weights) {
  v1::JobSpec spec;
  spec.mutable_model()->set_path(model);
  v1::Grpo& grpo = *spec.mutable_method()->mutable_grpo();
  grpo.set_max_completion_length(kLongest);
  grpo.set_temperature(1e-5);
  spec.mutable_generation()->set_weights(weights);
  spec.mutable_parallelism()->set_num_processes(world_size);
  spec::fill_defaults(spec);
  return spec;
}

struct Result {
  Made made;                // the same on all ranks
  std::vector<int> passes;  // of each
};

// Two prompts, which two ranks share.
Result make(const Prompts& prompts, int world_size, const char* weights) {
  at::set_num_threads(1);
  const TemporaryFolder model;
  model.write("generation_config.json",
              R"({"eos_token_id": )" + std::to_string(prompts.end_token) + "}");
  const v1::JobSpec spec = make_job(model.path(), world_size, weights);
  const Tokenizer tokenizer(fixture("gpt2"));
  std::vector<uint64_t> seeds(kSamples);
  std::iota(seeds.begin(), seeds.end(), 7);
  Result result;
  result.passes.resize(world_size);
  std::vector<Made> of_ranks(world_size);
  testing::run_worlds(testing::Backend::kThreads, world_size, [&](World& world) {
    const ModelConfig config = testing::tiny_config(/*tied=*/false);
    const Mesh mesh(world, {.dp_replicate = 1, .dp_shard = world_size, .cp = 1});
    TrainableModel policy = build_model(spec, config, mesh, at::kCPU);
    testing::fill_weights(policy, mesh.shard.rank());
    policy.weights_changed();
    const GenerationWork work{.num_prompts = 2,
                              .samples = kSamples,
                              .longest_prompt = std::ssize(prompts.late),
                              .num_ranks = world_size};
    int& passes = result.passes[mesh.world.rank()];
    CompletionMaker maker({.spec = spec,
                           .tokenizer = tokenizer,
                           .policy = policy,
                           .mesh = mesh,
                           .device = at::kCPU,
                           .on_transition = [](const EngineTransition&) {},
                           .alive = [&] { ++passes; }},
                          engine_options(spec, config, work));
    of_ranks[mesh.world.rank()] = maker.make({{prompts.early, seeds}, {prompts.late, seeds}});
  });
  result.made = of_ranks.front();
  return result;
}

TEST(CompletionMaker, ARankThatIsDoneTakesSamplesOfOthers) {
  const Prompts prompts = choose_prompts();
  ASSERT_GE(prompts.end_token, 0);
  const Made alone = make(prompts, 1, "gather").made;
  for (const MadeCompletion& early : alone[0]) ASSERT_LE(early.tokens.size(), 8u);
  for (const MadeCompletion& late : alone[1]) ASSERT_EQ(late.tokens.size(), kLongest);
  for (const char* weights : {"gather", "layerwise"}) {
    const Result shared = make(prompts, 2, weights);
    for (size_t prompt = 0; prompt < 2; ++prompt) {
      for (int64_t i = 0; i < kSamples; ++i) {
        const MadeCompletion &got = shared.made[prompt][i], &want = alone[prompt][i];
        EXPECT_EQ(got.tokens, want.tokens) << weights << ", " << i;
        EXPECT_EQ(got.sampling_logprobs, want.sampling_logprobs) << weights << ", " << i;
        EXPECT_EQ(got.truncated, want.truncated) << weights << ", " << i;
      }
    }
    // The first one's own are done after eight passes.
    EXPECT_GT(shared.passes[0], kLongest / 2) << weights;
  }
}

}  // namespace
}  // namespace tessera
