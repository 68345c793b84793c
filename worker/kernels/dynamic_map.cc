#include "worker/kernels/dynamic_map.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tessera {
namespace {

constexpr int kDecades = DynamicMap::kNumDecades - 1;
constexpr std::array<float, kDecades> kScales = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};

int parts_of(const DynamicMap& map, int decade) { return (map.is_signed ? 1 : 2) << decade; }

// torch.linspace(0.1, 1, count) in float32, with each product added unrounded.
float boundary(int i, int count) {
  const float step = (1.0f - 0.1f) / static_cast<float>(count - 1);
  if (i < count / 2) return std::fma(step, static_cast<float>(i), 0.1f);
  return std::fma(-step, static_cast<float>(count - 1 - i), 1.0f);
}

void fill_values(DynamicMap& map) {
  int count = 0;
  for (int decade = 0; decade < kDecades; ++decade) {
    const int parts = parts_of(map, decade);
    for (int i = 0; i < parts; ++i) {
      const float mean = (boundary(i, parts + 1) + boundary(i + 1, parts + 1)) / 2.0f;
      map.values[count++] = kScales[decade] * mean;
      if (map.is_signed) map.values[count++] = -kScales[decade] * mean;
    }
  }
  map.values[count++] = 0.0f;
  map.values[count++] = 1.0f;
  std::fill(map.values + count, map.values + DynamicMap::kNumCodes, 0.0f);
  std::sort(map.values, map.values + DynamicMap::kNumCodes);
}

// Half way between a size and the one before it.
float midpoint_below(const DynamicMap& map, int number) {
  const float* value = map.values + map.zero + number;
  return (value[-1] + value[0]) * 0.5f;
}

void fill_decades(DynamicMap& map) {
  int first = 1;
  for (int i = 0; i < kDecades; ++i) {
    const int parts = parts_of(map, i);
    const float steps = static_cast<float>(parts) / (kScales[i] * 0.9f);
    map.decades[i] = {midpoint_below(map, first), static_cast<float>(first), steps,
                      static_cast<float>(parts) / 9.0f, static_cast<float>(parts - 1)};
    first += parts;
  }
  map.decades[kDecades] = {midpoint_below(map, first), static_cast<float>(first), 0, 0, 0};
}

DynamicMap make_map(bool is_signed) {
  DynamicMap map{};
  map.is_signed = is_signed;
  fill_values(map);
  map.zero = static_cast<int32_t>(std::ranges::upper_bound(map.values, 0.0f) - map.values) - 1;
  fill_decades(map);
  return map;
}

}  // namespace

const DynamicMap& signed_dynamic_map() {
  static const DynamicMap map = make_map(/*is_signed=*/true);
  return map;
}

const DynamicMap& unsigned_dynamic_map() {
  static const DynamicMap map = make_map(/*is_signed=*/false);
  return map;
}

}  // namespace tessera
