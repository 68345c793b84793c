// Quantized weights back to numbers. See cpu_kernels.h.
#pragma once

#include "worker/kernels/nf4.h"
#include "worker/kernels/vec.h"

namespace tessera {
namespace {

// kLanes bytes from `codes` as their 2 * kLanes values, in order.
template <int kLanes>
struct Nf4Decoder {
  using V = Vec<kLanes>;
  using Float = typename V::Float;
  using Int = typename V::Int;
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

  Nf4Decoder() {
    for (int i = 0; i < kLanes; ++i) {
      lower[i] = kNf4Values[i % 16];
      upper[i] = kNf4Values[(kLanes + i) % 16];
      first[i] = i / 2 + (i % 2) * kLanes;
      second[i] = first[i] + kLanes / 2;
    }
  }
  Float look_up(Int index) const {
    if constexpr (kLanes == 16) {
      return __builtin_shuffle(lower, index);
    } else {
      return __builtin_shuffle(lower, upper, index);
    }
  }
  template <typename T>
  void decode(T* out, const uint8_t* codes, float scale) const {
    Bytes bytes;
    __builtin_memcpy(&bytes, codes, sizeof bytes);
    const Int wide = __builtin_convertvector(bytes, Int);
    const Float high = look_up(wide >> 4) * scale, low = look_up(wide & 15) * scale;
    V::store(out, __builtin_shuffle(high, low, first));
    V::store(out + kLanes, __builtin_shuffle(high, low, second));
  }

  Float lower, upper;  // the values of all codes
  Int first, second;   // what puts upper and lower halves of bytes in turn
};

template <int kLanes, typename T>
void dequantize_nf4(T* out, const uint8_t* codes, const float* scales, int64_t count) {
  using V = Vec<kLanes>;
  constexpr int64_t kStep = 2 * kLanes;
  [[maybe_unused]] const Nf4Decoder<kLanes> decoder;
  for (int64_t begin = 0; begin < count; begin += kNf4Block) {
    const int64_t end = begin + kNf4Block < count ? begin + kNf4Block : count;
    const float scale = scales[begin / kNf4Block];
    int64_t i = begin;
    if constexpr (kLanes >= 8) {
      for (; i + kStep <= end; i += kStep) decoder.decode(out + i, codes + i / 2, scale);
    }
    for (; i < end; ++i) {
      const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
      V::put(out + i, V::all(kNf4Values[code] * scale), 1);
    }
  }
}

template <int kLanes, typename T>
void dequantize_int8(T* out, const int8_t* codes, float scale, int64_t count) {
  using V = Vec<kLanes>;
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Bytes bytes;
    __builtin_memcpy(&bytes, codes + i, sizeof bytes);
    V::store(out + i, __builtin_convertvector(bytes, typename V::Float) * scale);
  }
  for (; i < count; ++i) V::put(out + i, V::all(static_cast<float>(codes[i]) * scale), 1);
}

}  // namespace
}  // namespace tessera
