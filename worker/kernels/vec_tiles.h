// Products of rows with the rows of a matrix on a processor with AMX: tiles of bfloat16, of which
// each float32 number is three. See cpu_kernels.h.
//
// x = high + middle + low, each of 8 bits, is exact. Of the nine products of two such numbers the
// six largest are added; the others are below half a unit in the last place of their sum. Sums are
// of float32, so a product rounds as that of any float32 kernel does. Infinite numbers, and those
// above 3.39e38, make NaNs; parts below the smallest normal number count as 0.
//
// A tile of the matrix has 16 of its rows by 32 values, as they lie, split when they are read. A
// tile of x has the same 32 values of 16 rows, turned: those are split and turned once a call.
#pragma once

#include "worker/kernels/vec.h"

namespace tessera {
namespace {

constexpr int kTileRows = 16;       // and columns of 4 bytes
constexpr int64_t kTileWidth = 32;  // values of a row in a tile
constexpr int kParts = 3;           // of a number
// Tiles of x that share what is split of the matrix, and the sums that there are registers for.
constexpr int kMostTiles = 4;
// Values whose products are added up before they are added to y: what is packed of x for them
// stays in the second cache.
constexpr int64_t kPackedWidth = 512;

typedef uint16_t Words __attribute__((vector_size(64)));
using V = Vec<16>;

struct alignas(64) Tile {
  V::Uint rows[kTileRows];
};

// Palette 1 with eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Tile registers belong to a thread from here on until this ends.
class TileScope {
 public:
  TileScope() {
    const TileConfig config;
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  ~TileScope() { asm volatile("tilerelease"); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

template <int kTile>
void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
void load_tile(const Tile& from) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(&from), "r"(int64_t{64}), "i"(kTile), "m"(from));
}
template <int kTile>
void store_tile(Tile& to) {
  asm volatile("tilestored %%tmm%c3, (%1,%2,1)"
               : "=m"(to)
               : "r"(&to), "r"(int64_t{64}), "i"(kTile));
}
// kSum[r][c] += the sum over k of the pairs kA[r][k] * kB[k][c].
template <int kSum, int kA, int kB>
void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

template <int kIndex>
struct Index {
  static constexpr int value = kIndex;
};
// body(Index<0>), ... body(Index<kCount - 1>)
template <int kCount, typename Body>
void each_index(const Body& body) {
  if constexpr (kCount > 0) {
    each_index<kCount - 1>(body);
    body(Index<kCount - 1>());
  }
}

// The upper halves of a's numbers, and beside each that of b's.
V::Uint beside(V::Uint a, V::Uint b) {
  return reinterpret_cast<V::Uint>(__builtin_shufflevector(
      reinterpret_cast<Words>(a), reinterpret_cast<Words>(b), 1, 33, 3, 35, 5, 37, 7, 39, 9, 41, 11,
      43, 13, 45, 15, 47, 17, 49, 19, 51, 21, 53, 23, 55, 25, 57, 27, 59, 29, 61, 31, 63));
}

// In the upper halves of each number.
struct Parts {
  explicit Parts(V::Float x) {
    high = (reinterpret_cast<V::Uint>(x) + 0x8000) & 0xffff0000;
    const V::Float rest = x - V::bits(high);
    middle = reinterpret_cast<V::Uint>(rest) & 0xffff0000;
    low = reinterpret_cast<V::Uint>(rest - V::bits(middle));
  }
  V::Uint high, middle, low;
};

// Row `row` of the tiles of `count` <= 32 values; zeros behind them.
void split_row(Tile (&tiles)[kParts], int row, const float* from, int64_t count) {
  const int64_t first = count < 16 ? count : 16;
  const Parts a(V::get(from, first)), b(V::get(from + first, count - first));
  tiles[0].rows[row] = beside(a.high, b.high);
  tiles[1].rows[row] = beside(a.middle, b.middle);
  tiles[2].rows[row] = beside(a.low, b.low);
}

// Rows [begin, end) of the tiles of num_rows <= 16 rows; those behind them are zeros.
void split_tile(Tile (&tiles)[kParts], Rows<const float> from, int64_t num_rows, int64_t count,
                int begin = 0, int end = kTileRows) {
  if (num_rows >= kTileRows && count == kTileWidth) {
    for (int row = begin; row < end; ++row) split_row(tiles, row, from[row], kTileWidth);
    return;
  }
  for (int row = begin; row < end; ++row)
    split_row(tiles, row, from[row], row < num_rows ? count : 0);
}

// Number i of row r changes places with number r of row i.
void turn(Tile& tile) {
  V::Uint other[kTileRows];
  // Blocks of `size` off the diagonal change places.
  const auto exchange = [](const V::Uint* from, V::Uint* to, int size, auto lower, auto upper) {
    for (int r = 0; r < kTileRows; ++r) {
      if (r & size) continue;
      to[r] = lower(from[r], from[r + size]);
      to[r + size] = upper(from[r], from[r + size]);
    }
  };
  exchange(
      tile.rows, other, 8,
      [](V::Uint a, V::Uint b) {
        return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22,
                                       23);
      },
      [](V::Uint a, V::Uint b) {
        return __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29,
                                       30, 31);
      });
  exchange(
      other, tile.rows, 4,
      [](V::Uint a, V::Uint b) {
        return __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26,
                                       27);
      },
      [](V::Uint a, V::Uint b) {
        return __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30,
                                       31);
      });
  exchange(
      tile.rows, other, 2,
      [](V::Uint a, V::Uint b) {
        return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28,
                                       29);
      },
      [](V::Uint a, V::Uint b) {
        return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30,
                                       31);
      });
  exchange(
      other, tile.rows, 1,
      [](V::Uint a, V::Uint b) {
        return __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14,
                                       30);
      },
      [](V::Uint a, V::Uint b) {
        return __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15,
                                       31);
      });
}

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t count_parts(int64_t size, int64_t part) { return (size + part - 1) / part; }

// Rows of x by a span of their values.
struct PackedRows {
  // Of kMostTiles * 16 rows or less.
  void pack(Rows<const float> x, int64_t num_rows, int64_t width) {
    for (int64_t step = 0; step < count_parts(width, kTileWidth); ++step) {
      for (int64_t row = 0; row < num_rows; row += kTileRows) {
        auto& packed = tiles[step][row / kTileRows];
        split_tile(packed, {x[row] + step * kTileWidth, x.stride}, least(kTileRows, num_rows - row),
                   least(kTileWidth, width - step * kTileWidth));
        for (Tile& tile : packed) turn(tile);
      }
    }
  }
  Tile tiles[kPackedWidth / kTileWidth][kMostTiles][kParts];
};

// The product of all packed rows with 16 rows of w, or fewer, over one span.
template <int kRowTiles>
void multiply_span(Rows<float> y, const PackedRows& x, Rows<const float> w, bool add,
                   int64_t num_rows, int64_t num_columns, int64_t width) {
  Tile splits[2][kParts];
  each_index<kRowTiles>([](auto row) { clear_tile<row.value>(); });
  split_tile(splits[0], w, num_columns, least(kTileWidth, width));
  const int64_t steps = count_parts(width, kTileWidth);
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t next = (step + 1) * kTileWidth;
    each_index<kRowTiles>([&](auto row) {
      // While tiles are multiplied the next ones are split: some rows between one and another.
      if (next < width) {
        split_tile(splits[(step + 1) % 2], {w.data + next, w.stride}, num_columns,
                   least(kTileWidth, width - next), row.value * kTileRows / kRowTiles,
                   (row.value + 1) * kTileRows / kRowTiles);
      }
      if constexpr (row.value == 0) {
        each_index<kParts>(
            [&](auto part) { load_tile<4 + part.value>(splits[step % 2][part.value]); });
      }
      each_index<kParts>([&](auto part) {
        load_tile<7>(x.tiles[step][row.value][part.value]);
        each_index<kParts - part.value>(
            [&](auto other) { multiply_tiles<row.value, 4 + other.value, 7>(); });
      });
    });
  }
  each_index<kRowTiles>([&](auto tile) {
    const int64_t row = tile.value * kTileRows;
    Tile made;
    store_tile<tile.value>(made);
    turn(made);
    for (int64_t m = 0; m < least(kTileRows, num_rows - row); ++m) {
      float* to = y[row + m];
      const auto value = V::bits(made.rows[m]);
      V::put(to, add ? V::get(to, num_columns) + value : value, num_columns);
    }
  });
}

// All columns; x has been packed.
template <int kRowTiles>
void multiply_packed(Rows<float> y, const PackedRows& x, Rows<const float> w, bool add,
                     int64_t num_rows, int64_t num_columns, int64_t width) {
  for (int64_t o = 0; o < num_columns; o += kTileRows) {
    multiply_span<kRowTiles>({y.data + o, y.stride}, x, {w[o], w.stride}, add, num_rows,
                             least(kTileRows, num_columns - o), width);
  }
}

void products_by_tiles(Rows<float> y, Rows<const float> x, Rows<const float> w, bool add,
                       int64_t num_rows, int64_t num_columns, int64_t width) {
  constexpr decltype(&multiply_packed<1>) kBySize[kMostTiles] = {
      multiply_packed<1>, multiply_packed<2>, multiply_packed<3>, multiply_packed<4>};
  // Spans are of one size or nearly, which is a matter of the width alone.
  const int64_t tiles = count_parts(width, kTileWidth);
  const int64_t spans = count_parts(tiles, kPackedWidth / kTileWidth);
  const int64_t span = count_parts(tiles, spans) * kTileWidth;
  const TileScope scope;
  PackedRows packed;
  for (int64_t row = 0; row < num_rows; row += kMostTiles * kTileRows) {
    const int64_t rows = least(kMostTiles * kTileRows, num_rows - row);
    for (int64_t i = 0; i < width; i += span) {
      const int64_t count = least(span, width - i);
      packed.pack({x[row] + i, x.stride}, rows, count);
      kBySize[count_parts(rows, kTileRows) - 1]({y[row], y.stride}, packed, {w.data + i, w.stride},
                                                add || i > 0, rows, num_columns, count);
    }
  }
}

}  // namespace
}  // namespace tessera
