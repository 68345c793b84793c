// AdamW by blocks of threads (block.h); contracts as in cpu_kernels.h.
#pragma once

#include <math.h>

#include "worker/kernels/cuda/block.h"
#include "worker/kernels/dynamic_map.h"

namespace tessera::cuda {

struct AdamWValue {
  float exp_avg, exp_avg_sq, weight;
};

TESSERA_BOTH inline AdamWValue updated(AdamWValue x, float gradient, const AdamWStep& step) {
  const float grad = gradient * step.gradient_scale;
  x.exp_avg = x.exp_avg + step.keep1 * (grad - x.exp_avg);
  x.exp_avg_sq = x.exp_avg_sq + step.keep2 * (grad * grad - x.exp_avg_sq);
  const float root = sqrtf(x.exp_avg_sq) / step.root_correction + step.epsilon;
  x.weight = x.weight * step.decay - (step.step_size * x.exp_avg) / root;
  return x;
}

// Values [i * kLanes, (i + 1) * kLanes).
template <int kLanes>
TESSERA_BOTH void adamw_lanes(float* weights, float* exp_avgs, float* exp_avg_sqs,
                              const float* gradients, const AdamWStep& step, int64_t i) {
  auto weight = load<kLanes>(weights, i), mean = load<kLanes>(exp_avgs, i),
       square = load<kLanes>(exp_avg_sqs, i);
  const auto gradient = load<kLanes>(gradients, i);
  for (int k = 0; k < kLanes; ++k) {
    const auto x = updated({mean.of[k], square.of[k], weight.of[k]}, gradient.of[k], step);
    mean.of[k] = x.exp_avg;
    square.of[k] = x.exp_avg_sq;
    weight.of[k] = x.weight;
  }
  store<kLanes>(weights, i, weight);
  store<kLanes>(exp_avgs, i, mean);
  store<kLanes>(exp_avg_sqs, i, square);
}

// Source: as vec_adamw.h's.
TESSERA_BOTH inline uint32_t hashed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

// Up or down with the probability that makes the mean exact.
TESSERA_BOTH inline Bfloat rounded_at_random(float value, uint32_t random) {
  const uint32_t raw = bits_of(value);
  if (value != value) return {static_cast<uint16_t>((raw | 0x400000U) >> 16)};
  return {static_cast<uint16_t>((raw + (random & 0xffffU)) >> 16)};
}

TESSERA_BOTH inline void adamw_bfloat_value(float* weights, Bfloat* exp_avgs, Bfloat* exp_avg_sqs,
                                            const float* gradients, const AdamWStep& step,
                                            uint32_t draw, int64_t i) {
  const auto x =
      updated({widened(exp_avgs[i]), widened(exp_avg_sqs[i]), weights[i]}, gradients[i], step);
  const uint32_t random = hashed(draw + static_cast<uint32_t>(i));
  weights[i] = x.weight;
  exp_avgs[i] = rounded_at_random(x.exp_avg, random);
  exp_avg_sqs[i] = rounded_at_random(x.exp_avg_sq, random >> 16);
}

// The code of a value over the largest size of its block.
TESSERA_BOTH inline uint8_t code_of(float value, float largest, const DynamicMap& map) {
  const float size = fabsf(value) / largest;
  DynamicMap::Decade decade{0, 0, 0, 0, 0};
  for (const DynamicMap::Decade& other : map.decades) {
    if (size > other.begin) decade = other;
  }
  const float step = size * decade.steps - decade.offset;
  const auto whole = static_cast<float>(static_cast<int32_t>(step > 0.0f ? step : 0.0f));
  const float number = decade.first + (whole < decade.last ? whole : decade.last);
  const auto zero = static_cast<float>(map.zero);
  if (!(value < 0.0f)) return static_cast<uint8_t>(number + zero);
  // A negative value never becomes zero.
  const float below = number > 1.0f ? number : 1.0f;
  return static_cast<uint8_t>(zero - (below < zero ? below : zero));
}

// A block's states in 8 bits: kAdamWBlock codes, or what is left of them, and their scale.
struct CodedBlock {
  uint8_t* codes;
  float* scale;
};

// `means` and `squares` are the block's own, kAdamWBlock values each; size <= kAdamWBlock.
template <typename Block>
TESSERA_BOTH void adamw_int8_block(const Block& block, float* means, float* squares, float* weights,
                                   const CodedBlock& exp_avgs, const CodedBlock& exp_avg_sqs,
                                   const float* gradients, const DynamicMap& signed_map,
                                   const DynamicMap& unsigned_map, const AdamWStep& step,
                                   int64_t size) {
  const float mean_scale = *exp_avgs.scale, square_scale = *exp_avg_sqs.scale;
  block.each(size, [&](int64_t i) {
    const float mean = signed_map.values[exp_avgs.codes[i]] * mean_scale;
    const float square = unsigned_map.values[exp_avg_sqs.codes[i]] * square_scale;
    const auto x = updated({mean, square, weights[i]}, gradients[i], step);
    weights[i] = x.weight;
    means[i] = x.exp_avg;
    squares[i] = x.exp_avg_sq;
  });
  const float largest_mean = block.largest(size, [&](int64_t i) { return fabsf(means[i]); });
  const float largest_square = block.largest(size, [&](int64_t i) { return fabsf(squares[i]); });
  block.each(size, [&](int64_t i) {
    exp_avgs.codes[i] = code_of(means[i], largest_mean, signed_map);
    exp_avg_sqs.codes[i] = code_of(squares[i], largest_square, unsigned_map);
  });
  block.once([&] {
    *exp_avgs.scale = largest_mean;
    *exp_avg_sqs.scale = largest_square;
  });
}

}  // namespace tessera::cuda
