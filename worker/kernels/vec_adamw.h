// AdamW on states of each type. See cpu_kernels.h.
#pragma once

#include "worker/kernels/vec.h"

namespace tessera {
namespace {

// Running means, and the weight they move.
template <int kLanes>
struct AdamWValues {
  typename Vec<kLanes>::Float exp_avg, exp_avg_sq, weight;
};

// Each product is added to one thing only: a compiler has one way to fuse them, and a weight's
// update does not depend on whether it stands in a whole vector.
template <int kLanes>
AdamWValues<kLanes> updated(AdamWValues<kLanes> x, typename Vec<kLanes>::Float gradient,
                            const AdamWStep& step) {
  using V = Vec<kLanes>;
  const auto grad = gradient * step.gradient_scale;
  x.exp_avg = x.exp_avg + step.keep1 * (grad - x.exp_avg);
  x.exp_avg_sq = x.exp_avg_sq + step.keep2 * (grad * grad - x.exp_avg_sq);
  const auto root = V::sqrt(x.exp_avg_sq) / step.root_correction + step.epsilon;
  x.weight = x.weight * step.decay - (step.step_size * x.exp_avg) / root;
  return x;
}

template <int kLanes>
void adamw(float* weights, float* exp_avgs, float* exp_avg_sqs, const float* gradients,
           const AdamWStep& step, int64_t count) {
  using V = Vec<kLanes>;
  V::each(count, [&](int64_t i, int64_t part) {
    const auto x = updated<kLanes>(
        {V::get(exp_avgs + i, part), V::get(exp_avg_sqs + i, part), V::get(weights + i, part)},
        V::get(gradients + i, part), step);
    V::put(weights + i, x.weight, part);
    V::put(exp_avgs + i, x.exp_avg, part);
    V::put(exp_avg_sqs + i, x.exp_avg_sq, part);
  });
}

// Bits that look random, for each of kLanes numbers from `first` on.
// Source: Wellons, hash-prospector: the 32-bit integer hash lowbias32.
template <int kLanes>
typename Vec<kLanes>::Uint hashed(uint32_t first) {
  typename Vec<kLanes>::Uint x;
  for (int i = 0; i < kLanes; ++i) x[i] = first + static_cast<uint32_t>(i);
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

// Rounds up or down with the probability that makes the mean exact: 16 random bits are added below
// those that stay. A NaN stays one.
template <int kLanes>
void put_rounded(Bfloat* to, typename Vec<kLanes>::Float value, typename Vec<kLanes>::Uint random,
                 int64_t count) {
  using V = Vec<kLanes>;
  const auto raw = reinterpret_cast<typename V::Uint>(value);
  const auto rounded = (raw + (random & 0xffffU)) & 0xffff0000U;
  const auto quiet_nan = raw | 0x400000U;
  V::put(to, V::bits(value != value ? quiet_nan & 0xffff0000U : rounded), count);
}

template <int kLanes>
void adamw_bfloat(float* weights, Bfloat* exp_avgs, Bfloat* exp_avg_sqs, const float* gradients,
                  const AdamWStep& step, uint32_t draw, int64_t count) {
  using V = Vec<kLanes>;
  V::each(count, [&](int64_t i, int64_t part) {
    const auto x = updated<kLanes>(
        {V::get(exp_avgs + i, part), V::get(exp_avg_sqs + i, part), V::get(weights + i, part)},
        V::get(gradients + i, part), step);
    const auto random = hashed<kLanes>(draw + static_cast<uint32_t>(i));
    V::put(weights + i, x.weight, part);
    put_rounded<kLanes>(exp_avgs + i, x.exp_avg, random, part);
    put_rounded<kLanes>(exp_avg_sqs + i, x.exp_avg_sq, random >> 16, part);
  });
}

// The number of each size of [0, 1], as a float: how many midpoints between sizes lie below it.
// Within a decade they lie evenly, so that the decade alone has to be found.
template <int kLanes>
typename Vec<kLanes>::Float number_of(typename Vec<kLanes>::Float size, const DynamicMap& map) {
  using V = Vec<kLanes>;
  auto first = V::all(0.0f), steps = V::all(0.0f), offset = V::all(0.0f), last = V::all(0.0f);
  for (const DynamicMap::Decade& decade : map.decades) {
    const auto is_in = size > decade.begin;
    first = is_in ? V::all(decade.first) : first;
    steps = is_in ? V::all(decade.steps) : steps;
    offset = is_in ? V::all(decade.offset) : offset;
    last = is_in ? V::all(decade.last) : last;
  }
  const auto step = V::max(size * steps - offset, V::all(0.0f));
  const auto whole =
      __builtin_convertvector(__builtin_convertvector(step, typename V::Int), typename V::Float);
  return first + (whole < last ? whole : last);
}

// Codes of `count` values, at most kAdamWBlock, over the largest of their sizes, which is returned.
// A negative value never becomes zero.
template <int kLanes>
float quantize(uint8_t* codes, const float* values, const DynamicMap& map, int64_t count) {
  using V = Vec<kLanes>;
  auto largest_of = V::all(0.0f);
  const auto size_of = [](auto value) { return value < 0.0f ? -value : value; };
  V::each(count, [&](int64_t i, int64_t part) {
    largest_of = V::max(largest_of, size_of(V::get(values + i, part)));
  });
  const float largest = V::largest(largest_of);
  const float zero = static_cast<float>(map.zero);
  V::each(count, [&](int64_t i, int64_t part) {
    const auto value = V::get(values + i, part);
    auto number = number_of<kLanes>(size_of(value) / largest, map);
    const auto below = V::max(number, V::all(1.0f));
    number = value < 0.0f ? (below > zero ? V::all(-zero) : -below) : number;
    const auto code = __builtin_convertvector(number + zero, typename V::Int);
    int32_t lanes[kLanes];
    __builtin_memcpy(lanes, &code, sizeof lanes);
    for (int64_t lane = 0; lane < part; ++lane) codes[i + lane] = static_cast<uint8_t>(lanes[lane]);
  });
  return largest;
}

inline void decode(float* values, const uint8_t* codes, const DynamicMap& map, float scale,
                   int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t code = codes[i];
    asm("" : "+r"(code));  // a gather would be slower than loads one by one
    values[i] = map.values[code] * scale;
  }
}

template <int kLanes>
void adamw_int8(float* weights, QuantizedRun exp_avgs, QuantizedRun exp_avg_sqs,
                const float* gradients, const AdamWStep& step, int64_t count) {
  using V = Vec<kLanes>;
  float means[kAdamWBlock], squares[kAdamWBlock];
  for (int64_t begin = 0; begin < count; begin += kAdamWBlock) {
    const int64_t size = count - begin < kAdamWBlock ? count - begin : kAdamWBlock;
    uint8_t *mean_codes = exp_avgs.codes + begin, *square_codes = exp_avg_sqs.codes + begin;
    float &mean_scale = exp_avgs.scales[begin / kAdamWBlock],
          &square_scale = exp_avg_sqs.scales[begin / kAdamWBlock];
    decode(means, mean_codes, *exp_avgs.map, mean_scale, size);
    decode(squares, square_codes, *exp_avg_sqs.map, square_scale, size);
    V::each(size, [&](int64_t i, int64_t part) {
      float* weight = weights + begin + i;
      const auto x = updated<kLanes>(
          {V::get(means + i, part), V::get(squares + i, part), V::get(weight, part)},
          V::get(gradients + begin + i, part), step);
      V::put(weight, x.weight, part);
      V::put(means + i, x.exp_avg, part);
      V::put(squares + i, x.exp_avg_sq, part);
    });
    mean_scale = quantize<kLanes>(mean_codes, means, *exp_avgs.map, size);
    square_scale = quantize<kLanes>(square_codes, squares, *exp_avg_sqs.map, size);
  }
}

}  // namespace
}  // namespace tessera
