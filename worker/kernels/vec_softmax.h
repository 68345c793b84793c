// Softmax of a row of logits, what it says of a label, and the gradient. See cpu_kernels.h.
#pragma once

#include "worker/kernels/vec.h"

namespace tessera {
namespace {

// Rows may be vocabularies of 200,000: sums are taken over blocks of so many values first.
constexpr int64_t kSumBlock = 2048;

template <int kLanes, typename T>
bool is_first(const T* logits, float value, int64_t before) {
  using V = Vec<kLanes>;
  const auto found = V::reduce(before, [&](auto part, int64_t i, int64_t count) {
    const auto equal = V::get(logits + i, count, value - 1.0f) == value;
    return part + (equal ? V::all(1.0f) : V::all(0.0f));
  });
  return V::sum(found) == 0;
}

// Leaves exp(logit - shift) in exps.
struct ExpSums {
  double exps, weighted;  // of exp(x), and of exp(x) * x, with x = logit - shift
  double squares;         // of exp(x)^2
};
template <int kLanes, bool kSquares, typename T>
ExpSums sum_exps(float* exps, const T* logits, float shift, int64_t width) {
  using V = Vec<kLanes>;
  ExpSums sums{};
  for (int64_t begin = 0; begin < width; begin += kSumBlock) {
    const int64_t length = width - begin < kSumBlock ? width - begin : kSumBlock;
    auto weighted_part = V::all(0.0f), squares_part = V::all(0.0f);
    sums.exps += V::sum(V::reduce(length, [&](auto part, int64_t i, int64_t count) {
      const auto shifted = V::get(logits + begin + i, count, shift) - shift;
      auto value = V::exp(shifted);
      V::put(exps + begin + i, value, count);
      if (count < kLanes)
        value = V::get(exps + begin + i, count);  // no exp(0) of what is not there
      weighted_part += value * shifted;
      if constexpr (kSquares) squares_part += value * value;
      return part + value;
    }));
    sums.weighted += V::sum(weighted_part);
    if constexpr (kSquares) sums.squares += V::sum(squares_part);
  }
  return sums;
}

template <int kLanes, typename T>
LabelStats label_stats(float* exps, const T* logits, int64_t label, int64_t width,
                       bool log_sum_sq) {
  using V = Vec<kLanes>;
  const float label_logit = V::get(logits + label, 1)[0];
  auto largest = V::all(-__builtin_inff());
  double sum_of_logits = 0;
  for (int64_t begin = 0; begin < width; begin += kSumBlock) {
    const int64_t length = width - begin < kSumBlock ? width - begin : kSumBlock;
    sum_of_logits += V::sum(V::reduce(length, [&](auto part, int64_t i, int64_t count) {
      largest = V::max(largest, V::get(logits + begin + i, count, -__builtin_inff()));
      return part + V::get(logits + begin + i, count);
    }));
  }
  const float shift = V::largest(largest);
  const bool correct = label_logit == shift && is_first<kLanes>(logits, shift, label);
  const ExpSums sums = log_sum_sq ? sum_exps<kLanes, true>(exps, logits, shift, width)
                                  : sum_exps<kLanes, false>(exps, logits, shift, width);
  const double log_sum = __builtin_log(sums.exps);
  const double mean_logit = sum_of_logits / static_cast<double>(width);
  return {static_cast<float>(double{label_logit} - shift - log_sum),
          static_cast<float>(mean_logit - shift - log_sum),
          static_cast<float>(log_sum - sums.weighted / sums.exps),
          correct ? 1.0f : 0.0f,
          static_cast<float>(sums.exps),
          static_cast<float>(mean_logit),
          log_sum_sq ? static_cast<float>(__builtin_log(sums.squares) - 2 * log_sum) : 0.0f};
}

template <int kLanes, typename T>
void logit_gradient(T* gradient, const float* exps, float sum_of_exps, float of_label,
                    float of_mean, int64_t label, int64_t width) {
  using V = Vec<kLanes>;
  const float scale = -(of_label + of_mean) / sum_of_exps;
  const float share = of_mean / static_cast<float>(width);
  const float at_label = scale * exps[label] + share + of_label;
  V::each(width, [&](int64_t i, int64_t count) {
    V::put(gradient + i, scale * V::get(exps + i, count) + share, count);
  });
  V::put(gradient + label, V::all(at_label), 1);
}

}  // namespace
}  // namespace tessera
