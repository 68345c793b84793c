// What a row of logits says of its label, and the gradient, by blocks of threads (block.h);
// contracts as in cpu_kernels.h. `width` is a multiple of kLanes.
#pragma once

#include <math.h>

#include "worker/kernels/cuda/block.h"

namespace tessera::cuda {

// One of the values of LabelStats each, of all rows. The last two may be null.
struct LabelStatsRows {
  float *logprob, *mean_logprob, *entropy, *correct, *sum_of_exps;
  float *mean_logit, *log_sum_sq;
};

// exps may be the logits.
template <int kLanes, typename Block, typename T>
TESSERA_BOTH void label_stats_row(const Block& block, const LabelStatsRows& out, int64_t row,
                                  float* exps, const T* logits, int64_t label, int64_t width) {
  const float label_logit = widened(logits[label]);
  const float largest = block.largest(width / kLanes, [&](int64_t i) {
    const auto values = load<kLanes>(logits, i);
    float most = values.of[0];
    for (int k = 1; k < kLanes; ++k) most = most > values.of[k] ? most : values.of[k];
    return most;
  });
  enum { kExps, kWeighted, kSquares, kLogits, kEqualBefore, kNumSums };
  const auto sums = block.template sum<kNumSums>(width / kLanes, [&](int64_t i) {
    auto values = load<kLanes>(logits, i);
    Sums<kNumSums> part{};
    for (int k = 0; k < kLanes; ++k) {
      const float shifted = values.of[k] - largest, exp = expf(shifted);
      part.of[kExps] += exp;
      // Of -inf nothing: its exponential is 0, and the product would be none.
      part.of[kWeighted] += exp == 0.0f ? 0.0f : exp * shifted;
      part.of[kSquares] += exp * exp;
      part.of[kLogits] += values.of[k];
      part.of[kEqualBefore] += values.of[k] == largest && i * kLanes + k < label ? 1.0f : 0.0f;
      values.of[k] = exp;
    }
    store<kLanes>(exps, i, values);
    return part;
  });
  block.once([&] {
    const float log_sum = logf(sums.of[kExps]);
    const float mean = sums.of[kLogits] / static_cast<float>(width);
    out.logprob[row] = label_logit - largest - log_sum;
    out.mean_logprob[row] = mean - largest - log_sum;
    out.entropy[row] = log_sum - sums.of[kWeighted] / sums.of[kExps];
    out.correct[row] = label_logit == largest && sums.of[kEqualBefore] == 0.0f ? 1.0f : 0.0f;
    out.sum_of_exps[row] = sums.of[kExps];
    if (out.mean_logit != nullptr) out.mean_logit[row] = mean;
    if (out.log_sum_sq != nullptr) out.log_sum_sq[row] = logf(sums.of[kSquares]) - 2 * log_sum;
  });
}

// gradient may be exps.
template <int kLanes, typename Block, typename T>
TESSERA_BOTH void logit_gradient_row(const Block& block, T* gradient, const float* exps,
                                     float sum_of_exps, float of_label, float of_mean,
                                     int64_t label, int64_t width) {
  const float scale = -(of_label + of_mean) / sum_of_exps;
  const float share = of_mean / static_cast<float>(width);
  block.each(width / kLanes, [&](int64_t i) {
    auto values = load<kLanes>(exps, i);
    for (int k = 0; k < kLanes; ++k) {
      values.of[k] = scale * values.of[k] + share;
      if (i * kLanes + k == label) values.of[k] += of_label;
    }
    store<kLanes>(gradient, i, values);
  });
}

}  // namespace tessera::cuda
