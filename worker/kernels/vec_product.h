// Products of rows with the rows of a matrix. See cpu_kernels.h.
#pragma once

#include "worker/kernels/vec.h"

namespace tessera {
namespace {

// Values whose products are added up lane by lane before the lanes are: few enough for what a tile
// reads of them to stay in the nearest cache.
constexpr int64_t kProductSpan = 1024;
// Rows that share what is loaded of a span of the matrix.
constexpr int64_t kProductRows = 64;
// Rows of a tile: so many sums, and what they need, are in registers.
template <int kLanes>
constexpr int kTileRows = kLanes == 16  ? 6
                          : kLanes == 8 ? 3
                                        : 2;

// The sums of the lanes of four vectors, each by halves.
template <int kLanes>
struct LaneSums {
  using Float = typename VecTypes<kLanes>::Float;
  static auto of(Float a, Float b, Float c, Float d) {
    return LaneSums<kLanes / 2>::of(fold(a), fold(b), fold(c), fold(d));
  }

 private:
  static auto fold(Float value) {
    typename VecTypes<kLanes / 2>::Float halves[2];
    __builtin_memcpy(halves, &value, sizeof value);
    return halves[0] + halves[1];
  }
};
template <>
struct LaneSums<4> {
  using Float = VecTypes<4>::Float;
  static Float of(Float a, Float b, Float c, Float d) {
    const Float ab = fold(a, b), cd = fold(c, d);
    return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) +
           __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
  }

 private:
  static Float fold(Float a, Float b) {
    return __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  }
};

// kRows rows of x by kColumns (4, or less) rows of w, over values of one span.
template <int kLanes, int kRows, int kColumns>
void product_tile(Rows<float> y, Rows<const float> x, Rows<const float> w, bool add,
                  int64_t width) {
  using V = Vec<kLanes>;
  typename V::Float sums[kRows][4] = {};
  V::each(width, [&](int64_t i, int64_t count) {
    typename V::Float weights[kColumns];
    for (int o = 0; o < kColumns; ++o) {
      weights[o] = V::get(w[o] + i, count);
      __builtin_prefetch(w[o + 2 * kColumns] + i);  // what the tile after the next one reads
    }
    for (int m = 0; m < kRows; ++m) {
      const auto value = V::get(x[m] + i, count);
      for (int o = 0; o < kColumns; ++o) sums[m][o] += value * weights[o];
    }
  });
  for (int m = 0; m < kRows; ++m) {
    const auto of_row = LaneSums<kLanes>::of(sums[m][0], sums[m][1], sums[m][2], sums[m][3]);
    const auto before = add ? Vec<4>::get(y[m], kColumns) : Vec<4>::all(0.0f);
    Vec<4>::put(y[m], before + of_row, kColumns);
  }
}

// Of num_rows rows, at most kRows of them.
template <int kLanes, int kRows, int kColumns>
void product_tile_of(int64_t num_rows, Rows<float> y, Rows<const float> x, Rows<const float> w,
                     bool add, int64_t width) {
  if (num_rows == kRows) return product_tile<kLanes, kRows, kColumns>(y, x, w, add, width);
  if constexpr (kRows > 1)
    product_tile_of<kLanes, kRows - 1, kColumns>(num_rows, y, x, w, add, width);
}

// All rows by kColumns rows of w over a span, in tiles of nearly one size.
template <int kLanes, int kColumns>
void product_columns(Rows<float> y, Rows<const float> x, Rows<const float> w, bool add,
                     int64_t num_rows, int64_t width) {
  const int64_t tiles = (num_rows + kTileRows<kLanes> - 1) / kTileRows<kLanes>;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t row = tile * num_rows / tiles, end = (tile + 1) * num_rows / tiles;
    product_tile_of<kLanes, kTileRows<kLanes>, kColumns>(end - row, {y[row], y.stride},
                                                         {x[row], x.stride}, w, add, width);
  }
}

template <int kLanes>
void product_span(Rows<float> y, Rows<const float> x, Rows<const float> w, bool add,
                  int64_t num_rows, int64_t num_columns, int64_t width) {
  int64_t o = 0;
  for (; o + 4 <= num_columns; o += 4) {
    product_columns<kLanes, 4>({y.data + o, y.stride}, x, {w[o], w.stride}, add, num_rows, width);
  }
  for (; o < num_columns; ++o) {
    product_columns<kLanes, 1>({y.data + o, y.stride}, x, {w[o], w.stride}, add, num_rows, width);
  }
}

// Spans are taken one after the other where rows share what a cache holds of them; of a few rows
// the matrix is read in the order in which it lies.
template <int kLanes>
void row_products(Rows<float> y, Rows<const float> x, Rows<const float> w, bool add,
                  int64_t num_rows, int64_t num_columns, int64_t width) {
  const int64_t columns = num_rows > kTileRows<kLanes> ? num_columns : 4;
  for (int64_t row = 0; row < num_rows; row += kProductRows) {
    const int64_t rows = num_rows - row < kProductRows ? num_rows - row : kProductRows;
    for (int64_t o = 0; o < num_columns; o += columns) {
      const int64_t count = num_columns - o < columns ? num_columns - o : columns;
      for (int64_t i = 0; i < width; i += kProductSpan) {
        const int64_t span = width - i < kProductSpan ? width - i : kProductSpan;
        product_span<kLanes>({y[row] + o, y.stride}, {x[row] + i, x.stride}, {w[o] + i, w.stride},
                             add || i > 0, rows, count, span);
      }
    }
  }
}

}  // namespace
}  // namespace tessera
