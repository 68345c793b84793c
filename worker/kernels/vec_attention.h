// The rows of attention scores. See cpu_kernels.h.
#pragma once

#include "worker/kernels/vec.h"

namespace tessera {
namespace {

// exp(score - shift) where the query sees, and their sum.
template <int kLanes>
float exponentials(float* scores, float shift, int64_t first, int64_t last, int64_t width) {
  using V = Vec<kLanes>;
  float* const seen = scores + first;
  const auto sum = V::reduce(last - first, [&](auto part, int64_t i, int64_t count) {
    const auto value = V::exp(V::get(seen + i, count, -__builtin_inff()) - shift);
    V::put(seen + i, value, count);
    return part + value;
  });
  __builtin_memset(scores, 0, sizeof(float) * first);
  __builtin_memset(scores + last, 0, sizeof(float) * (width - last));
  return V::sum(sum);
}

template <int kLanes>
SoftmaxSums softmax(float* scores, int64_t first, int64_t last, int64_t width) {
  using V = Vec<kLanes>;
  auto largest = V::all(-__builtin_inff());
  V::each(last - first, [&](int64_t i, int64_t count) {
    largest = V::max(largest, V::get(scores + first + i, count, -__builtin_inff()));
  });
  const float shift = V::largest(largest);
  return {shift, exponentials<kLanes>(scores, shift, first, last, width)};
}

template <int kLanes>
void probabilities(float* scores, float lse, int64_t first, int64_t last, int64_t width) {
  exponentials<kLanes>(scores, lse, first, last, width);
}

template <int kLanes>
void score_gradient(float* gradient, const float* probabilities, float mean, int64_t width) {
  using V = Vec<kLanes>;
  V::each(width, [&](int64_t i, int64_t count) {
    V::put(gradient + i, V::get(probabilities + i, count) * (V::get(gradient + i, count) - mean),
           count);
  });
}

template <int kLanes>
float dot(const float* a, const float* b, int64_t width) {
  using V = Vec<kLanes>;
  return V::sum(V::reduce(width, [&](auto part, int64_t i, int64_t count) {
    return part + V::get(a + i, count) * V::get(b + i, count);
  }));
}

}  // namespace
}  // namespace tessera
