// Quantized weights back to numbers (quantized_ops.h), by threads of kLanes values each.
#pragma once

#include "worker/kernels/cuda/block.h"
#include "worker/kernels/dynamic_map.h"
#include "worker/kernels/nf4.h"

namespace tessera::cuda {

// Where the parts of a matrix in NF4 are. Not nested: group_scales is null.
struct Nf4Parts {
  const uint8_t* codes;
  const float* scales;         // not nested
  const uint8_t* scale_codes;  // nested
  const float *group_scales, *mean;
};

// The values of the 16 codes, and of a dynamic map's, as a kernel gets them.
struct Nf4Tables {
  float values[16];
  float scales[DynamicMap::kNumCodes];
};

TESSERA_BOTH inline float nf4_scale(const Nf4Parts& parts, const Nf4Tables& tables, int64_t block) {
  if (parts.group_scales == nullptr) return parts.scales[block];
  return tables.scales[parts.scale_codes[block]] * parts.group_scales[block / kNf4ScaleGroup] +
         *parts.mean;
}

// out[i] for i of [index * kLanes, (index + 1) * kLanes) below `count`: elements of the matrix from
// `begin` on, which is even. kLanes is even and divides kNf4Block.
template <int kLanes, typename T>
TESSERA_BOTH void dequantize_nf4_lanes(T* out, const Nf4Parts& parts, const Nf4Tables& tables,
                                       int64_t begin, int64_t index, int64_t count) {
  const int64_t first = index * kLanes, at = begin + first;
  const float scale = nf4_scale(parts, tables, at / kNf4Block);
  Lanes<kLanes> values;
  for (int k = 0; k < kLanes; ++k) {
    if (first + k >= count) break;
    const uint8_t pair = parts.codes[(at + k) / 2];
    values.of[k] = tables.values[k % 2 == 0 ? pair >> 4 : pair & 15] * scale;
  }
  if (first + kLanes <= count) return store<kLanes>(out, index, values);
  for (int k = 0; first + k < count; ++k) out[first + k] = narrowed<T>(values.of[k]);
}

// out[i] is element begin + i of the matrix; a scale a row of `width`.
template <typename T>
TESSERA_BOTH void dequantize_int8_value(T* out, const int8_t* codes, const float* scales,
                                        float step, int64_t begin, int64_t width, int64_t i) {
  const int64_t at = begin + i;
  out[i] = narrowed<T>(static_cast<float>(codes[at]) * (scales[at / width] * step));
}

}  // namespace tessera::cuda
