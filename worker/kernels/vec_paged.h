// Pages of cached keys and values. See cpu_kernels.h.
#pragma once

#include "worker/kernels/vec.h"

namespace tessera {
namespace {

// Rows that share what is loaded of a page.
constexpr int kPageRows = 4;

template <int kLanes, typename T, int kRows>
void scores_of_rows(Rows<float> scores, Rows<const float> queries, const T* keys, int64_t width) {
  using V = Vec<kLanes>;
  constexpr int kParts = kPageTokens / kLanes;
  typename V::Float sums[kRows][kParts] = {};
  for (int64_t h = 0; h < width; ++h) {
    for (int part = 0; part < kParts; ++part) {
      const auto key = V::load(keys + h * kPageTokens + part * kLanes);
      for (int row = 0; row < kRows; ++row) sums[row][part] += queries[row][h] * key;
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kParts; ++part)
      V::store(scores[row] + part * kLanes, sums[row][part]);
  }
}

template <int kLanes, typename T>
void page_scores(Rows<float> scores, Rows<const float> queries, const T* keys, int64_t num_rows,
                 int64_t width) {
  int64_t row = 0;
  const auto at = [&](auto rows) { return decltype(rows){rows[row], rows.stride}; };
  for (; row + kPageRows <= num_rows; row += kPageRows)
    scores_of_rows<kLanes, T, kPageRows>(at(scores), at(queries), keys, width);
  for (; row < num_rows; ++row) scores_of_rows<kLanes, T, 1>(at(scores), at(queries), keys, width);
}

template <int kLanes, typename T, int kRows>
void values_of_rows(Rows<float> out, Rows<const float> weights, const T* values, int64_t count,
                    int64_t width) {
  using V = Vec<kLanes>;
  V::each(width, [&](int64_t h, int64_t lanes) {
    typename V::Float sums[kRows];
    for (int row = 0; row < kRows; ++row) sums[row] = V::get(out[row] + h, lanes);
    for (int64_t j = 0; j < count; ++j) {
      const auto value = V::get(values + j * width + h, lanes);
      for (int row = 0; row < kRows; ++row) sums[row] += weights[row][j] * value;
    }
    for (int row = 0; row < kRows; ++row) V::put(out[row] + h, sums[row], lanes);
  });
}

template <int kLanes, typename T>
void page_values(Rows<float> out, Rows<const float> weights, const T* values, int64_t count,
                 int64_t num_rows, int64_t width) {
  int64_t row = 0;
  const auto at = [&](auto rows) { return decltype(rows){rows[row], rows.stride}; };
  for (; row + kPageRows <= num_rows; row += kPageRows)
    values_of_rows<kLanes, T, kPageRows>(at(out), at(weights), values, count, width);
  for (; row < num_rows; ++row)
    values_of_rows<kLanes, T, 1>(at(out), at(weights), values, count, width);
}

}  // namespace
}  // namespace tessera
