// Source: transformers/modeling_rope_utils.py. Every step is in the precision that transformers has
// there: what Python computes in double, what torch computes in float32.
#include "worker/model/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "worker/model/document_stretches.h"

namespace tessera {
namespace {

using Type = RopeConfig::Type;

const at::TensorOptions kWide = at::TensorOptions(at::kFloat);

// base^(2i / head_dim)
at::Tensor wavelengths_over_2pi(double base, int64_t head_dim) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, kWide).div_(head_dim);
  return at::pow(at::Scalar(base), exponents);
}

// The base that stretches the longest wavelength by what the document is too long.
double dynamic_base(const RopeConfig& rope, int64_t head_dim, int64_t length) {
  if (length <= rope.max_positions) return rope.theta;
  const float stretch = static_cast<float>(rope.factor) * static_cast<float>(length) /
                            static_cast<float>(rope.max_positions) -
                        static_cast<float>(rope.factor - 1);
  const double exponent = static_cast<double>(head_dim) / static_cast<double>(head_dim - 2);
  return static_cast<float>(rope.theta) * std::pow(stretch, static_cast<float>(exponent));
}

// Long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
at::Tensor llama3_frequencies(const RopeConfig& rope, const at::Tensor& plain_H) {
  const auto context = static_cast<double>(rope.original_max_positions);
  const double longest = context / rope.low_freq_factor, shortest = context / rope.high_freq_factor;
  const at::Tensor wavelengths = at::Scalar(2 * std::numbers::pi) / plain_H;
  const at::Tensor stretched = at::where(wavelengths > longest, plain_H / rope.factor, plain_H);
  const at::Tensor smooth = (at::Scalar(context) / wavelengths - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor between = (1 - smooth) * stretched / rope.factor + smooth * stretched;
  return at::where((wavelengths < shortest).logical_or(wavelengths > longest), stretched, between);
}

// The channel whose wavelength makes `rotations` turns over the original context.
double yarn_channel(const RopeConfig& rope, int64_t head_dim, double rotations) {
  const double turns =
      static_cast<double>(rope.original_max_positions) / (rotations * 2 * std::numbers::pi);
  return static_cast<double>(head_dim) * std::log(turns) / (2 * std::log(rope.theta));
}

at::Tensor yarn_frequencies(const RopeConfig& rope, int64_t head_dim) {
  double low = yarn_channel(rope, head_dim, rope.beta_fast);
  double high = yarn_channel(rope, head_dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;  // a ramp without width has no slope
  const at::Tensor ramp = ((at::arange(head_dim / 2, kWide) - low) / (high - low)).clamp_(0, 1);
  const at::Tensor kept = 1 - ramp;
  const at::Tensor base = wavelengths_over_2pi(rope.theta, head_dim);
  return at::Scalar(1.0) / (base * rope.factor) * (1 - kept) + at::Scalar(1.0) / base * kept;
}

// Tokens [begin, begin + count) of a document of `length`.
struct Stretch {
  int64_t begin, count, length;
};

// Of tokens at such positions. `stretches`: all that are too long for the table of others.
RotaryTables make_tables(const RopeConfig& rope, int64_t head_dim, const at::Tensor& positions_T,
                         const std::vector<Stretch>& stretches, at::ScalarType dtype) {
  const at::Tensor positions_T1 = positions_T.to(at::kFloat).unsqueeze(1);
  const auto frequencies = [&](int64_t length) {
    return inverse_frequencies(rope, head_dim, length).to(positions_T1.device()).unsqueeze(0);
  };
  at::Tensor angles_TH = positions_T1 * frequencies(/*length=*/0);
  for (const auto& [begin, count, length] : stretches) {
    angles_TH.narrow(0, begin, count)
        .copy_(positions_T1.narrow(0, begin, count) * frequencies(length));
  }
  const auto scaled = [&](const at::Tensor& table) {
    return (rope.attention_factor == 1 ? table : table * rope.attention_factor).to(dtype);
  };
  return {scaled(angles_TH.cos()), scaled(angles_TH.sin())};
}

}  // namespace

at::Tensor inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t length) {
  if (rope.type == Type::kYarn) return yarn_frequencies(rope, head_dim);
  const double base =
      rope.type == Type::kDynamic ? dynamic_base(rope, head_dim, length) : rope.theta;
  at::Tensor plain_H = at::Scalar(1.0) / wavelengths_over_2pi(base, head_dim);
  if (rope.type == Type::kLinear) return plain_H.div_(rope.factor);
  if (rope.type == Type::kLlama3) return llama3_frequencies(rope, plain_H);
  return plain_H;
}

RotaryTables rotary_tables(const RopeConfig& rope, int64_t head_dim, const Documents& documents,
                           at::ScalarType dtype) {
  std::vector<Stretch> too_long;
  if (rope.type == Type::kDynamic) {
    each_stretch(documents, [&](int64_t s, int64_t begin, int64_t count) {
      const int64_t length = documents.cu_seqlens[s + 1] - documents.cu_seqlens[s];
      if (length > rope.max_positions) too_long.push_back({begin, count, length});
    });
  }
  return make_tables(rope, head_dim, documents.positions_T, too_long, dtype);
}

RotaryTables rotary_tables(const RopeConfig& rope, int64_t head_dim, const at::Tensor& positions_T,
                           const std::vector<int64_t>& lengths, at::ScalarType dtype) {
  std::vector<Stretch> too_long;
  for (int64_t t = 0; rope.type == Type::kDynamic && t < std::ssize(lengths); ++t) {
    if (lengths[t] <= rope.max_positions) continue;
    if (!too_long.empty() && too_long.back().length == lengths[t] &&
        too_long.back().begin + too_long.back().count == t) {
      ++too_long.back().count;
    } else {
      too_long.push_back({t, 1, lengths[t]});
    }
  }
  return make_tables(rope, head_dim, positions_T, too_long, dtype);
}

}  // namespace tessera
