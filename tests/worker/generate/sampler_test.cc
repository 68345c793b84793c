#include "worker/generate/sampler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "tests/worker/generate/chi_square.h"
#include "worker/errors.h"
#include "worker/kernels/work.h"

namespace tessera {
namespace {

// The distribution by its definition, in double precision, as transformers' logits processors and
// warpers have it one after the other.
std::vector<double> exact_distribution(const std::vector<float>& logits, const SamplingParams& s,
                                       const std::vector<int32_t>& tokens) {
  std::vector<double> x(logits.begin(), logits.end());
  for (const int32_t token : std::set<int32_t>(tokens.begin(), tokens.end()))
    x[token] = x[token] < 0 ? x[token] * s.repetition_penalty : x[token] / s.repetition_penalty;
  for (double& value : x) value /= s.temperature;
  const auto softmax = [&] {
    const double largest = *std::ranges::max_element(x);
    std::vector<double> p;
    for (const double value : x) p.push_back(std::exp(value - largest));
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= total;
    return p;
  };
  const auto drop = [&](const auto& is_dropped) {
    for (size_t i = 0; i < x.size(); ++i) {
      if (is_dropped(i)) x[i] = -INFINITY;
    }
  };
  if (s.top_k > 0 && s.top_k < std::ssize(x)) {
    std::vector<double> sorted = x;
    std::ranges::sort(sorted, std::greater<>());
    const std::vector<double> before = x;
    drop([&](size_t i) { return before[i] < sorted[s.top_k - 1]; });
  }
  if (s.top_p < 1) {
    const std::vector<double> p = softmax();
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return p[a] > p[b]; });
    double mass = 0;
    for (const size_t i : order) {
      if (mass >= s.top_p) x[i] = -INFINITY;
      mass += p[i];
    }
  }
  if (s.min_p > 0) {
    const std::vector<double> p = softmax();
    const double largest = *std::ranges::max_element(p);
    drop([&](size_t i) { return p[i] < s.min_p * largest; });
  }
  return softmax();
}

std::vector<SampledToken> draw(const std::vector<float>& logits, const SamplingParams& s,
                               const std::vector<int32_t>& tokens,
                               const std::vector<uint64_t>& seeds, int64_t index = 0) {
  const at::Tensor row = at::tensor(logits).unsqueeze(0);
  return sample_rows(row, {{.sampling = &s, .tokens = tokens, .seeds = seeds, .index = index}})[0];
}

std::vector<float> random_logits(int64_t size, unsigned seed, double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(scale));
  std::vector<float> logits(size);
  for (float& value : logits) value = normal(random);
  return logits;
}

struct SamplerCase {
  const char* name;
  SamplingParams sampling;
};

class Sampler : public ::testing::TestWithParam<SamplerCase> {};

// 60,000 draws: half of them by seed, half by the number of the token.
TEST_P(Sampler, DrawsFromTheExactDistribution) {
  const std::vector<float> logits = random_logits(50, 3, 1.5);
  const std::vector<int32_t> tokens = {4, 9, 4, 17};
  const std::vector<double> p = exact_distribution(logits, GetParam().sampling, tokens);
  constexpr int64_t kDraws = 60000;
  std::vector<int64_t> counts(logits.size());
  const auto take = [&](const SampledToken& sampled) {
    ++counts[sampled.token];
    ASSERT_NEAR(sampled.sampling_logprob, std::log(p[sampled.token]), 1e-5);
  };
  std::vector<uint64_t> seeds(kDraws / 2);
  std::iota(seeds.begin(), seeds.end(), 0);
  for (const SampledToken& sampled : draw(logits, GetParam().sampling, tokens, seeds))
    take(sampled);
  for (int64_t index = 0; index < kDraws / 2; ++index)
    take(draw(logits, GetParam().sampling, tokens, {7}, index).front());
  testing::expect_drawn_from(p, counts);
}

INSTANTIATE_TEST_SUITE_P(Parameters, Sampler,
                         ::testing::Values(SamplerCase{"plain", {}},
                                           SamplerCase{"hot", {.temperature = 1.7}},
                                           SamplerCase{"cold", {.temperature = 0.6}},
                                           SamplerCase{"top_k", {.top_k = 11}},
                                           SamplerCase{"top_p", {.top_p = 0.8}},
                                           SamplerCase{"min_p", {.min_p = 0.15}},
                                           SamplerCase{"penalty", {.repetition_penalty = 1.8}},
                                           SamplerCase{"all",
                                                       {.temperature = 1.3,
                                                        .top_k = 20,
                                                        .top_p = 0.9,
                                                        .min_p = 0.05,
                                                        .repetition_penalty = 1.3}}),
                         [](const auto& info) { return info.param.name; });

// Wider than what is put in order at first.
TEST(SamplerRows, TopPOfAWideRow) {
  const std::vector<float> logits = random_logits(5000, 5, 0.3);
  const SamplingParams sampling{.top_p = 0.7};
  const std::vector<double> p = exact_distribution(logits, sampling, {});
  std::vector<uint64_t> seeds(2000);
  std::iota(seeds.begin(), seeds.end(), 0);
  for (const SampledToken& sampled : draw(logits, sampling, {}, seeds)) {
    ASSERT_GT(p[sampled.token], 0);
    ASSERT_NEAR(sampled.sampling_logprob, std::log(p[sampled.token]), 1e-4);
  }
}

TEST(SamplerRows, LogprobsAreThoseOfTheModel) {
  const at::Tensor logits = at::randn({3, 40}) * 4;
  const SamplingParams sampling{.temperature = 0.5, .top_k = 5};
  const std::vector<uint64_t> seeds = {1, 2, 3};
  const auto made = sample_rows(logits, std::vector<RowDraws>(3, {&sampling, {}, seeds, 4}));
  const at::Tensor exact = at::log_softmax(logits.to(at::kDouble), 1);
  for (int64_t row = 0; row < 3; ++row) {
    for (const SampledToken& sampled : made[row])
      EXPECT_NEAR(sampled.logprob, exact[row][sampled.token].item<double>(), 1e-5);
  }
}

TEST(SamplerRows, TemperatureZeroTakesTheFirstOfTheMostLikely) {
  const std::vector<float> logits = {0, 3, -1, 3, 2};
  const SampledToken plain = draw(logits, {.temperature = 0}, {}, {5}).front();
  EXPECT_EQ(plain.token, 1);
  EXPECT_FLOAT_EQ(plain.logprob, plain.sampling_logprob);
  EXPECT_EQ(draw(logits, {.temperature = 0, .repetition_penalty = 2}, {1, 3, 1}, {5}).front().token,
            4);
}

TEST(SamplerRows, ARowDoesNotDependOnTheOthers) {
  const at::Tensor logits = at::randn({6, 300});
  const SamplingParams sampling{.temperature = 1.2, .top_p = 0.95};
  std::vector<std::vector<uint64_t>> seeds;
  std::vector<RowDraws> draws;
  for (uint64_t row = 0; row < 6; ++row) seeds.push_back({row, row + 9});
  for (int64_t row = 0; row < 6; ++row) draws.push_back({&sampling, {}, seeds[row], row});
  const auto together = sample_rows(logits, draws);
  for (int64_t row = 0; row < 6; ++row) {
    const auto alone = sample_rows(logits.narrow(0, row, 1), {draws[row]}).front();
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(alone[i].token, together[row][i].token);
      EXPECT_EQ(alone[i].logprob, together[row][i].logprob);
      EXPECT_EQ(alone[i].sampling_logprob, together[row][i].sampling_logprob);
    }
  }
}

TEST(SamplerRows, RefusesLogitsThatAreNotFinite) {
  const std::vector<float> logits = {0, NAN, 1};
  EXPECT_ANY_THROW(draw(logits, {}, {}, {1}));
}

TEST(SamplingParamsCheck, NamesTheFieldAndItsRule) {
  const auto message = [](const SamplingParams& sampling) -> std::string {
    try {
      check_sampling(sampling, "method.grpo");
    } catch (const UserError& error) {
      return error.field() + ": " + error.what();
    }
    return "";
  };
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({.temperature = -1}),
            "method.grpo.temperature: method.grpo.temperature is -1, must be 0 or more");
  EXPECT_EQ(message({.top_p = 0}),
            "method.grpo.top_p: method.grpo.top_p is 0, must be above 0 and at most 1");
  EXPECT_NE(message({.top_k = -1}), "");
  EXPECT_NE(message({.min_p = 1.5}), "");
  EXPECT_NE(message({.repetition_penalty = 0}), "");
  EXPECT_NE(message({.max_new_tokens = 0}), "");
  EXPECT_NE(message({.stop_strings = {""}}), "");
  EXPECT_NE(message({.temperature = NAN}), "");
}

// Of a rehearsal: what rows of the vocabulary take.
TEST(Sampler, CountsHowOftenItGoesThroughTheVocabulary) {
  const auto bytes_of = [](const SamplingParams& sampling, int64_t vocab_size, int64_t num_rows) {
    const std::vector<uint64_t> seeds{1};
    const std::vector<RowDraws> draws(static_cast<size_t>(num_rows),
                                      RowDraws{.sampling = &sampling, .seeds = seeds});
    const at::Tensor logits = at::empty({num_rows, vocab_size}, at::TensorOptions(at::kMeta));
    WorkCount work;
    const WorkScope scope(work);
    sample_rows(logits, draws);
    return work.memory_bytes;
  };
  const int64_t plain = bytes_of({}, 100, 1);
  EXPECT_GE(plain, 100 * 4 * 2);
  EXPECT_EQ(bytes_of({}, 200, 3), 6 * plain);
  EXPECT_EQ(bytes_of({.temperature = 0}, 100, 1), plain);
  EXPECT_GT(bytes_of({.temperature = 2}, 100, 1), plain);
}

TEST(Sampler, SaysThatLogitsAreNotFinite) {
  const SamplingParams sampling;
  const std::vector<uint64_t> seeds{1};
  for (const float bad : {NAN, INFINITY}) {
    const at::Tensor logits = at::tensor({0.5f, bad, 1.f, -1.f}).view({1, 4});
    EXPECT_THROW(sample_rows(logits, {{.sampling = &sampling, .seeds = seeds}}), NonFiniteLogits);
  }
  const at::Tensor never = at::tensor({0.5f, -INFINITY, 1.f, -1.f}).view({1, 4});
  EXPECT_NE(sample_rows(never, {{.sampling = &sampling, .seeds = seeds}}).at(0).at(0).token, 1);
}

}  // namespace
}  // namespace tessera
