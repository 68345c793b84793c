// What the CUDA kernels compute of a row, or of a run of values, is written once for any block of
// threads: a GPU's (device_block.cuh), and one that a test plays on the host, to compare with the
// kernels of a CPU where there is no GPU.
//
// A block has
//   each(count, body)        body(i) for i < count, spread over its threads: i goes to the same
//                            thread in every call
//   sum<N>(count, body)      the sum of body(i), a Sums<N>, known to every thread; what was read
//                            before is read by all when it returns
//   largest(count, body)     of body(i), a float, likewise
//   once(body)               body() in one thread
#pragma once

#include <cstdint>

#include "worker/kernels/cpu_kernels.h"

#ifdef __CUDACC__
#define TESSERA_BOTH __host__ __device__
#else
#define TESSERA_BOTH
#endif

namespace tessera::cuda {

// Row i begins at data + i * stride, as cpu_kernels.h's Rows has it.
template <typename T>
struct FlatRows {
  T* data;
  int64_t stride;
  TESSERA_BOTH T* operator[](int64_t i) const { return data + i * stride; }
};

// Row i of [T, D], or head i % num_heads of token i / num_heads of [T, N, D].
template <typename T>
struct TokenRows {
  T* data;
  int64_t token_stride, head_stride, num_heads;
  TESSERA_BOTH T* operator[](int64_t i) const {
    return data + i / num_heads * token_stride + i % num_heads * head_stride;
  }
};

template <int N>
struct Sums {
  float of[N];
};

// As cpu_kernels.h rounds: to the nearest, ties to even; a NaN stays one.
TESSERA_BOTH inline uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}
TESSERA_BOTH inline float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
TESSERA_BOTH inline float widened(float value) { return value; }
TESSERA_BOTH inline float widened(Bfloat value) { return float_of(uint32_t{value.bits} << 16); }

template <typename T>
TESSERA_BOTH T narrowed(float value);
template <>
TESSERA_BOTH inline float narrowed<float>(float value) {
  return value;
}
template <>
TESSERA_BOTH inline Bfloat narrowed<Bfloat>(float value) {
  const uint32_t raw = bits_of(value);
  if (value != value) return {static_cast<uint16_t>((raw >> 16) | 0x40)};
  return {static_cast<uint16_t>((raw + 0x7fff + ((raw >> 16) & 1)) >> 16)};
}

// kLanes values that are read and written at once: `from` is at a multiple of their size.
template <int kLanes>
struct Lanes {
  float of[kLanes];
};
template <typename T, int kLanes>
struct alignas(sizeof(T) * kLanes) Packed {
  T of[kLanes];
};

template <int kLanes, typename T>
TESSERA_BOTH Lanes<kLanes> load(const T* from, int64_t index) {
  const auto packed = reinterpret_cast<const Packed<T, kLanes>*>(from)[index];
  Lanes<kLanes> values;
  for (int k = 0; k < kLanes; ++k) values.of[k] = widened(packed.of[k]);
  return values;
}

template <int kLanes, typename T>
TESSERA_BOTH void store(T* to, int64_t index, const Lanes<kLanes>& values) {
  Packed<T, kLanes> packed;
  for (int k = 0; k < kLanes; ++k) packed.of[k] = narrowed<T>(values.of[k]);
  reinterpret_cast<Packed<T, kLanes>*>(to)[index] = packed;
}

}  // namespace tessera::cuda
