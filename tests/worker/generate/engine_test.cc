// What a completion is, whatever it was made with.
#include "worker/generate/engine.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <map>

#include "tests/worker/data/fixtures.h"
#include "tests/worker/generate/chi_square.h"
#include "tests/worker/generate/tiny_engine.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using testing::EngineCase;
using testing::EngineRank;
using testing::generate_alone;
using testing::generate_on_ranks;
using testing::sampled_requests;
using testing::tokens_of;

// Requests one at a time, each on an engine of its own.
std::vector<std::vector<int32_t>> one_by_one(const EngineCase& c,
                                             const std::vector<GenerationRequest>& requests) {
  std::vector<std::vector<int32_t>> tokens;
  for (const GenerationRequest& request : requests) {
    for (const Completion& completion : generate_alone(c, {request}))
      tokens.push_back(completion.tokens);
  }
  return tokens;
}

EngineCase tight_case() {
  EngineCase c;
  c.options.num_pages = 9;
  c.options.limits = {.max_pass_tokens = 17, .max_running = 6};
  return c;
}

TEST(Engine, ASampleIsTheSameWhateverItWasBatchedWith) {
  const auto requests = sampled_requests(14);
  const auto expected = one_by_one({}, requests);
  EXPECT_EQ(tokens_of(generate_alone({}, requests)), expected);
  EXPECT_EQ(tokens_of(generate_alone(tight_case(), requests)), expected);
  for (const WeightMode mode : {WeightMode::kGather, WeightMode::kLayerwise}) {
    EngineCase c;
    c.options.weights = mode;
    EXPECT_EQ(generate_on_ranks(c, requests, 2), expected);
    EngineCase tight = tight_case();
    tight.options.weights = mode;
    EXPECT_EQ(generate_on_ranks(tight, requests, 3), expected);
  }
}

// In a pool that would not hold their past.
TEST(Engine, PagesBehindAllWindowsAreUsedAgain) {
  EngineCase c;
  c.config.windows = {3, 5, 17};
  auto requests = sampled_requests(6, 2);
  for (GenerationRequest& request : requests) request.sampling.max_new_tokens = 60;
  const auto expected = tokens_of(generate_alone(c, requests));
  c.options.num_pages = 9;
  c.options.limits = {.max_pass_tokens = 17, .max_running = 3};
  const auto group = make_single_collectives();
  EngineRank rank(c, *group);
  EXPECT_EQ(tokens_of(rank.engine->generate(requests)), expected);
  EXPECT_EQ(rank.engine->counts().preemptions, 0);
  c.config.windows = {3, 0, 17};
  EngineRank keeps_all(c, *group);
  keeps_all.engine->generate(requests);
  EXPECT_GT(keeps_all.engine->counts().preemptions, 0);
}

// What was submitted.
std::vector<Completion> finish(Engine& engine) {
  while (engine.step()) {
  }
  return engine.take_finished();
}

// Whatever there is of them: others of their prompt that have not begun, a part of a prompt, some
// tokens. To the bit.
TEST(Engine, AnotherEngineGoesOnWithSamples) {
  EngineCase c;
  c.options.limits = {.max_pass_tokens = 24, .max_running = 8};
  auto requests = sampled_requests(6, 3);
  for (GenerationRequest& request : requests) request.sampling.max_new_tokens = 60;
  const std::vector<Completion> expected = generate_alone(c, requests);
  for (const int passes : {1, 3, 9, 20}) {
    const auto group = make_single_collectives();
    EngineRank giver(c, *group), taker(c, *group);
    for (const GenerationRequest& request : requests) giver.engine->submit(request);
    for (int i = 0; i < passes; ++i) giver.engine->step();
    const int64_t unfinished = giver.engine->num_unfinished(),
                  movable = giver.engine->num_movable();
    ASSERT_GE(movable, 8) << passes;
    const std::vector<HandedSample> handed = giver.engine->hand_over(7);
    ASSERT_EQ(handed.size(), 7u);
    EXPECT_EQ(giver.engine->num_unfinished(), unfinished - 7);
    EXPECT_EQ(giver.engine->num_movable(), movable - 7);
    std::map<int64_t, const HandedSample*> taken;
    for (const HandedSample& sample : handed) taken[taker.engine->submit(sample.rest)] = &sample;
    std::vector<Completion> made = finish(*giver.engine);
    for (Completion& completion : finish(*taker.engine)) {
      const HandedSample& sample = *taken.at(completion.request);
      completion.request = sample.request;
      completion.sample = sample.sample;
      made.push_back(std::move(completion));
    }
    std::ranges::sort(made, {}, [](const Completion& m) { return std::pair(m.request, m.sample); });
    ASSERT_EQ(made.size(), expected.size());
    for (size_t i = 0; i < made.size(); ++i) {
      EXPECT_EQ(made[i].tokens, expected[i].tokens) << passes << ", " << i;
      EXPECT_EQ(made[i].logprobs, expected[i].logprobs) << passes << ", " << i;
      EXPECT_EQ(made[i].sampling_logprobs, expected[i].sampling_logprobs) << passes << ", " << i;
    }
  }
}

// All of it is run again elsewhere: of a long prompt that takes longer than what is left.
TEST(Engine, SamplesStayWhereMuchWouldBeRunAgain) {
  EngineCase c;
  const auto group = make_single_collectives();
  EngineRank rank(c, *group);
  GenerationRequest request{.prompt = std::vector<int32_t>(20, 3)};
  request.sampling.max_new_tokens = 30;
  rank.engine->submit(request);
  for (int i = 0; i < 5; ++i) rank.engine->step();
  EXPECT_EQ(rank.engine->num_movable(), 1);
  rank.engine->step();
  EXPECT_EQ(rank.engine->num_movable(), 0);
  EXPECT_EQ(rank.engine->num_unfinished(), 1);
  EXPECT_TRUE(rank.engine->hand_over(1).empty());
}

// Others' samples take no more memory than its own did.
TEST(Engine, BoundPassesAreNoHeavierThanTheHeaviest) {
  EngineCase c;
  const auto group = make_single_collectives();
  EngineRank rank(c, *group);
  const auto requests = sampled_requests(4);
  rank.engine->generate({requests[0]});
  const int64_t heaviest = rank.engine->counts().most_pass_tokens;
  rank.engine->bound_passes();
  rank.engine->generate(requests);
  EXPECT_EQ(rank.engine->counts().most_pass_tokens, heaviest);
  rank.engine->fall_asleep(SleepLevel::kDrop);
  rank.engine->generate(requests);
  EXPECT_GT(rank.engine->counts().most_pass_tokens, heaviest);
}

TEST(Engine, LengthsAreWhatWasAskedFor) {
  const auto requests = sampled_requests(14);
  const auto made = generate_alone(tight_case(), requests);
  ASSERT_EQ(made.size(), requests.size());
  for (size_t i = 0; i < made.size(); ++i) {
    EXPECT_EQ(made[i].request, static_cast<int64_t>(i));
    EXPECT_EQ(std::ssize(made[i].tokens), requests[i].sampling.max_new_tokens);
    EXPECT_EQ(made[i].logprobs.size(), made[i].tokens.size());
    EXPECT_EQ(made[i].sampling_logprobs.size(), made[i].tokens.size());
    EXPECT_EQ(made[i].finish, FinishReason::kLength);
  }
}

TEST(Engine, SamplesOfAPromptAreThoseOfItsSeedsAlone) {
  const auto groups = sampled_requests(5, 6);
  std::vector<GenerationRequest> apart;
  for (const GenerationRequest& group : groups) {
    for (const uint64_t seed : group.seeds) {
      apart.push_back(group);
      apart.back().seeds = {seed};
    }
  }
  const auto expected = tokens_of(generate_alone({}, apart));
  EXPECT_EQ(tokens_of(generate_alone({}, groups)), expected);
  EXPECT_EQ(tokens_of(generate_alone(tight_case(), groups)), expected);
  EngineCase narrow;  // groups of more samples than run at once
  narrow.options.limits = {.max_pass_tokens = 64, .max_running = 4};
  EXPECT_EQ(tokens_of(generate_alone(narrow, groups)), expected);
  EXPECT_NE(expected[0], expected[1]);
}

TEST(Engine, RunsAPromptOnceForAllItsSamples) {
  const auto group = make_single_collectives();
  EngineRank rank({}, *group);
  GenerationRequest request = sampled_requests(2, 8)[1];
  request.prompt.resize(30, 3);
  request.sampling.max_new_tokens = 5;
  rank.engine->generate({request});
  // The prompt, and of each sample all tokens but the last.
  EXPECT_EQ(rank.engine->counts().tokens_run, 30 + 8 * 4);
  EXPECT_EQ(rank.engine->counts().pages_copied, 7);
  EXPECT_EQ(rank.engine->counts().passes, 5);
}

// Log-probabilities of a training forward, of the tokens after the prompt.
at::Tensor trained_logprobs(DecoderModel& model, const std::vector<int32_t>& prompt,
                            const std::vector<int32_t>& completion) {
  std::vector<int64_t> tokens(prompt.begin(), prompt.end());
  tokens.insert(tokens.end(), completion.begin(), completion.end());
  const int64_t length = std::ssize(tokens), first = std::ssize(prompt) - 1;
  Batch batch;
  batch.tokens_T = at::tensor(tokens, at::kLong);
  batch.documents.cu_seqlens = {0, length};
  batch.documents.positions_T = at::arange(length, at::kLong);
  batch.labels_T = batch.tokens_T.roll(-1);
  batch.label_rows_L = at::arange(first, length - 1, at::kLong);
  batch.num_tokens = length;
  const c10::NoGradGuard no_grad;
  return model.head(model.forward(batch), batch).logprobs_T.narrow(0, first, length - 1 - first);
}

struct ModelCase {
  const char* name;
  ModelConfig config;
  const char* dtype = "float32";
  double tolerance = 1e-5;
};

std::vector<ModelCase> model_cases() {
  const ModelConfig plain = testing::tiny_config(false);
  ModelConfig windows = plain;
  windows.windows = {0, 5, 17};
  ModelConfig biases = testing::tiny_config(true);
  biases.qkv_bias = biases.o_bias = biases.mlp_bias = true;
  biases.qk_norm = false;
  return {{"plain", plain},
          {"windows", windows},
          {"biases_tied", biases},
          {"mixture", testing::tiny_mixture()},
          {"bfloat16", plain, "bfloat16", 5e-2}};
}

class EngineLogprobs : public ::testing::TestWithParam<ModelCase> {};

TEST_P(EngineLogprobs, AreThoseOfATrainingForward) {
  at::set_num_threads(1);
  EngineCase c;
  c.config = GetParam().config;
  c.spec.mutable_model()->set_dtype(GetParam().dtype);
  const auto group = make_single_collectives();
  EngineRank rank(c, *group);
  const auto requests = sampled_requests(6, 2);
  for (const Completion& made : rank.engine->generate(requests)) {
    rank.engine->fall_asleep(SleepLevel::kDrop);
    const at::Tensor expected =
        trained_logprobs(*rank.trainable.model, requests[made.request].prompt, made.tokens);
    for (int64_t i = 0; i < expected.size(0); ++i)
      EXPECT_NEAR(made.logprobs[i], expected[i].item<float>(), GetParam().tolerance) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineLogprobs, ::testing::ValuesIn(model_cases()),
                         [](const auto& info) { return info.param.name; });

// The tokens' probabilities behind `tokens`, by training forwards.
std::vector<double> exact_probabilities(DecoderModel& model, const std::vector<int32_t>& tokens) {
  std::vector<double> p;
  for (int32_t token = 0; token < model.config().vocab_size; ++token)
    p.push_back(std::exp(trained_logprobs(model, tokens, {token})[0].item<double>()));
  return p;
}

// First tokens, which passes of prompts sample, and those behind the most frequent one of them.
TEST(Engine, DrawsFromTheModelsDistributionInAnyBatchMix) {
  GenerationRequest request{.prompt = {5, 11, 2, 30, 7}};
  request.sampling.max_new_tokens = 2;
  request.seeds.resize(20000);
  std::iota(request.seeds.begin(), request.seeds.end(), 0);
  std::vector<GenerationRequest> mix = sampled_requests(9, 2);
  mix.insert(mix.begin() + 4, request);
  EngineCase roomy;
  roomy.options.num_pages = 4000;
  roomy.options.limits = {.max_pass_tokens = 2000, .max_running = 2000};
  EngineCase narrow = roomy;
  narrow.options.limits = {.max_pass_tokens = 90, .max_running = 70};
  const auto group = make_single_collectives();
  for (const EngineCase& c : {roomy, narrow}) {
    EngineRank rank(c, *group);
    std::vector<int64_t> first(37), second(37);
    std::vector<Completion> made = rank.engine->generate(mix);
    std::erase_if(made, [](const Completion& completion) { return completion.request != 4; });
    ASSERT_EQ(made.size(), request.seeds.size());
    for (const Completion& completion : made) ++first[completion.tokens[0]];
    const auto most = static_cast<int32_t>(std::ranges::max_element(first) - first.begin());
    for (const Completion& completion : made)
      second[completion.tokens[1]] += completion.tokens[0] == most ? 1 : 0;
    rank.engine->fall_asleep(SleepLevel::kDrop);
    std::vector<int32_t> tokens = request.prompt;
    testing::expect_drawn_from(exact_probabilities(*rank.trainable.model, tokens), first);
    tokens.push_back(most);
    testing::expect_drawn_from(exact_probabilities(*rank.trainable.model, tokens), second);
  }
}

TEST(Engine, TheModelWithoutItsAdaptersIsAnother) {
  EngineCase c;
  c.spec.mutable_peft()->set_lora_r(2);
  spec::fill_defaults(c.spec);
  const auto requests = sampled_requests(4);
  const auto adapted = tokens_of(generate_alone(c, requests));
  c.options.adapters = false;
  const auto base = tokens_of(generate_alone(c, requests));
  EXPECT_NE(adapted, base);
  EXPECT_EQ(base, tokens_of(generate_alone({}, requests)));
}

TEST(Engine, StopsBehindAStopToken) {
  GenerationRequest request = sampled_requests(3)[2];
  request.sampling.max_new_tokens = 40;
  const Completion whole = generate_alone({}, {request}).front();
  request.sampling.stop_tokens = {whole.tokens[7]};
  const Completion made = generate_alone({}, {request}).front();
  const auto first = std::ranges::find(whole.tokens, whole.tokens[7]);
  EXPECT_EQ(made.tokens, std::vector<int32_t>(whole.tokens.begin(), first + 1));
  EXPECT_EQ(made.finish, FinishReason::kStopToken);
  EXPECT_STREQ(finish_name(made.finish), "stop");
}

TEST(Engine, StopsWhereTheTextHoldsAStopString) {
  const Tokenizer tokenizer(fixture("gpt2"));
  EngineCase c;
  c.tokenizer = &tokenizer;
  GenerationRequest request = sampled_requests(3)[2];
  request.sampling.max_new_tokens = 40;
  const Completion whole = generate_alone(c, {request}).front();
  // A text that several tokens make.
  const std::vector<int32_t> few(whole.tokens.begin(), whole.tokens.begin() + 9);
  const std::string text = tokenizer.decode(few);
  ASSERT_GE(text.size(), 4u);
  request.sampling.stop_strings = {"no such text", text.substr(text.size() - 4)};
  const Completion made = generate_alone(c, {request}).front();
  EXPECT_EQ(made.finish, FinishReason::kStopString);
  EXPECT_THAT(whole.tokens.size(), ::testing::Gt(made.tokens.size()));
  const std::vector<int32_t> before(made.tokens.begin(), made.tokens.end() - 1);
  const auto holds = [&](const std::vector<int32_t>& ids) {
    return tokenizer.decode(ids).find(request.sampling.stop_strings[1]) != std::string::npos;
  };
  EXPECT_TRUE(holds(made.tokens));
  EXPECT_FALSE(holds(before));
}

TEST(Engine, ACancelledRequestEndsWithWhatItHas) {
  const auto group = make_single_collectives();
  EngineRank rank({}, *group);
  std::vector<GenerationRequest> requests = sampled_requests(2, 2);
  for (GenerationRequest& request : requests) request.sampling.max_new_tokens = 9;
  const int64_t first = rank.engine->submit(requests[0]);
  const int64_t second = rank.engine->submit(requests[1]);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(rank.engine->step());
  rank.engine->cancel(first);
  while (rank.engine->step()) {
  }
  const auto made = rank.engine->take_finished();
  ASSERT_EQ(made.size(), 4u);
  const auto expected = generate_alone({}, requests);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(made[i].request, i < 2 ? first : second);
    EXPECT_EQ(made[i].finish, i < 2 ? FinishReason::kCancelled : FinishReason::kLength);
    std::vector<int32_t> want = expected[i].tokens;
    if (i < 2) want.resize(4);
    EXPECT_EQ(made[i].tokens, want);
  }
  rank.engine->submit(requests[0]);
  rank.engine->cancel(second + 1);  // before it has begun
  EXPECT_TRUE(rank.engine->is_idle());
  EXPECT_EQ(rank.engine->take_finished().size(), 2u);
}

TEST(Engine, TellsOfEachTokenAsItIsMade) {
  EngineCase c;
  std::map<std::pair<int64_t, int64_t>, std::vector<int32_t>> told;
  c.options.on_token = [&](const GeneratedToken& made) {
    told[{made.request, made.sample}].push_back(made.sampled.token);
  };
  for (const Completion& made : generate_alone(c, sampled_requests(3, 2)))
    EXPECT_EQ((told[{made.request, made.sample}]), made.tokens);
}

std::string refusal(const GenerationRequest& request) {
  const auto group = make_single_collectives();
  EngineRank rank(tight_case(), *group);
  try {
    rank.engine->submit(request);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Engine, RefusesWhatItCannotServe) {
  const GenerationRequest good{.prompt = {1, 2}};
  GenerationRequest bad = good;
  bad.sampling.max_new_tokens = 9 * 16 - 1;
  EXPECT_EQ(refusal(bad),
            "generation.max_new_tokens is 143 after a prompt of 2 tokens, must fit a cache of 144 "
            "tokens");
  bad.sampling.max_new_tokens = 9 * 16 - 2;
  EXPECT_EQ(refusal(bad), "");
  EXPECT_NE(refusal({.prompt = {}}), "");
  EXPECT_NE(refusal({.prompt = {37}, .sampling = bad.sampling}), "");
  EXPECT_NE(refusal({.prompt = {-1}, .sampling = bad.sampling}), "");
  bad.sampling.stop_strings = {"x"};
  EXPECT_NE(refusal(bad), "");  // no tokenizer
  bad = {.prompt = {1}, .sampling = {.max_new_tokens = 3}, .seeds = {}};
  EXPECT_NE(refusal(bad), "");
}

}  // namespace
}  // namespace tessera
