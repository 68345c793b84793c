#include "worker/model/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace tessera {
namespace {

using Type = RopeConfig::Type;

constexpr int64_t kWidth = 16;

std::vector<double> frequencies(const RopeConfig& rope, int64_t length = 1) {
  const at::Tensor values = inverse_frequencies(rope, kWidth, length).to(at::kDouble);
  const double* begin = values.const_data_ptr<double>();
  return {begin, begin + values.numel()};
}

double plain(double theta, int64_t pair) { return std::pow(theta, -2.0 * double(pair) / kWidth); }

TEST(Rope, DefaultFrequenciesFallGeometrically) {
  const std::vector<double> found = frequencies({.theta = 500});
  ASSERT_EQ(found.size(), kWidth / 2);
  for (int64_t i = 0; i < kWidth / 2; ++i) EXPECT_NEAR(found[i], plain(500, i), 1e-6);
}

TEST(Rope, LinearDividesAll) {
  const std::vector<double> found = frequencies({.type = Type::kLinear, .theta = 500, .factor = 4});
  for (int64_t i = 0; i < kWidth / 2; ++i) EXPECT_NEAR(found[i], plain(500, i) / 4, 1e-6);
}

TEST(Rope, DynamicRaisesTheBaseForDocumentsThatAreTooLong) {
  const RopeConfig rope{.type = Type::kDynamic, .theta = 500, .factor = 2, .max_positions = 10};
  EXPECT_EQ(frequencies(rope, 10), frequencies({.theta = 500}));
  const double base = 500 * std::pow(2 * 30 / 10.0 - 1, 16.0 / 14.0);
  const std::vector<double> found = frequencies(rope, 30);
  for (int64_t i = 0; i < kWidth / 2; ++i) EXPECT_NEAR(found[i], plain(base, i), 1e-6);
}

TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const RopeConfig rope{.type = Type::kLlama3,
                        .theta = 500,
                        .factor = 8,
                        .original_max_positions = 64,
                        .low_freq_factor = 1,
                        .high_freq_factor = 4};
  const std::vector<double> found = frequencies(rope);
  int kept = 0, stretched = 0, between = 0;
  for (int64_t i = 0; i < kWidth / 2; ++i) {
    const double frequency = plain(500, i), turns = 64 * frequency / (2 * std::numbers::pi);
    const double smooth = std::clamp((turns - 1) / (4 - 1), 0.0, 1.0);
    EXPECT_NEAR(found[i], (1 - smooth) * frequency / 8 + smooth * frequency, 1e-6) << i;
    kept += smooth == 1;
    stretched += smooth == 0;
    between += smooth > 0 && smooth < 1;
  }
  EXPECT_TRUE(kept > 0 && stretched > 0 && between > 0);
}

TEST(Rope, YarnRampsFromKeptToStretched) {
  const RopeConfig rope{.type = Type::kYarn,
                        .theta = 500,
                        .factor = 4,
                        .original_max_positions = 64,
                        .beta_fast = 8,
                        .beta_slow = 1};
  // Channels (of kWidth) that turn 8 times and once within 64 positions.
  const auto channel = [](double turns) {
    return kWidth * std::log(64 / (turns * 2 * std::numbers::pi)) / (2 * std::log(500.0));
  };
  const double low = std::floor(channel(8)), high = std::ceil(channel(1));
  const std::vector<double> found = frequencies(rope);
  for (int64_t i = 0; i < kWidth / 2; ++i) {
    const double ramp =
        std::clamp((double(i) - std::max(low, 0.0)) / (high - std::max(low, 0.0)), 0.0, 1.0);
    EXPECT_NEAR(found[i], plain(500, i) * (1 - ramp + ramp / 4), 1e-6) << i;
  }
}

TEST(RotaryTables, ScaleADocumentByItsOwnLengthOnly) {
  const RopeConfig rope{.type = Type::kDynamic, .theta = 500, .factor = 2, .max_positions = 10};
  const auto tables = [&](const std::vector<int64_t>& lengths) {
    Documents documents{{0}, {}};
    std::vector<at::Tensor> positions;
    for (const int64_t length : lengths) {
      documents.cu_seqlens.push_back(documents.cu_seqlens.back() + length);
      positions.push_back(at::arange(length, at::kLong));
    }
    documents.positions_T = at::cat(positions);
    return rotary_tables(rope, kWidth, documents, at::kFloat);
  };
  const RotaryTables all = tables({8, 30, 12});
  int64_t begin = 0;
  for (const int64_t length : {8, 30, 12}) {
    const RotaryTables alone = tables({length});
    EXPECT_TRUE(at::equal(all.cos_TH.narrow(0, begin, length), alone.cos_TH));
    EXPECT_TRUE(at::equal(all.sin_TH.narrow(0, begin, length), alone.sin_TH));
    begin += length;
  }
}

TEST(RotaryTables, CarryTheAttentionFactor) {
  const Documents documents{{0, 5}, at::arange(5, at::kLong)};
  const RotaryTables once = rotary_tables({}, kWidth, documents, at::kFloat);
  const RotaryTables scaled =
      rotary_tables({.attention_factor = 1.5}, kWidth, documents, at::kFloat);
  EXPECT_TRUE(at::allclose(scaled.cos_TH, once.cos_TH * 1.5));
  EXPECT_TRUE(at::allclose(scaled.sin_TH, once.sin_TH * 1.5));
}

}  // namespace
}  // namespace tessera
