// Vectors of kLanes floats, in the compiler's own vector types: the same source becomes SSE2, AVX2
// or AVX-512 by the flags of the file that includes it. Everything has internal linkage and nothing
// else is included, so that no code compiled with those flags can be linked into the rest.
#pragma once

#include <cstdint>

#include "worker/kernels/cpu_kernels.h"

namespace tessera {
namespace {

template <int kLanes>
struct VecTypes {
  typedef float Float __attribute__((vector_size(kLanes * 4)));
  typedef int32_t Int __attribute__((vector_size(kLanes * 4)));
  typedef uint32_t Uint __attribute__((vector_size(kLanes * 4)));
  typedef uint16_t Short __attribute__((vector_size(kLanes * 2)));
};

template <int kLanes>
struct Vec {
  using Float = typename VecTypes<kLanes>::Float;
  using Int = typename VecTypes<kLanes>::Int;
  using Uint = typename VecTypes<kLanes>::Uint;
  using Short = typename VecTypes<kLanes>::Short;

  static Float all(float value) { return Float{} + value; }
  static Float bits(Uint value) { return reinterpret_cast<Float>(value); }

  static Float load(const float* from) {
    Float value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
  }
  static void store(float* to, Float value) { __builtin_memcpy(to, &value, sizeof value); }

  static Float load(const Bfloat* from) {
    Short value;
    __builtin_memcpy(&value, from, sizeof value);
    return bits(__builtin_convertvector(value, Uint) << 16);
  }
  // Rounds to the nearest, ties to even; a NaN stays one.
  static void store(Bfloat* to, Float value) {
    const Uint raw = reinterpret_cast<Uint>(value);
    const Uint rounded = (raw + 0x7fff + ((raw >> 16) & 1)) >> 16;
    const Uint quiet_nan = (raw >> 16) | 0x40;
    const Short narrow = __builtin_convertvector(value != value ? quiet_nan : rounded, Short);
    __builtin_memcpy(to, &narrow, sizeof narrow);
  }

  // `count` <= kLanes values; the rest are `otherwise`.
  template <typename T>
  static Float get(const T* from, int64_t count, float otherwise = 0.0f) {
    if (count == kLanes) return load(from);
    T values[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) values[i] = from[i];
    Float result = load(values);
    for (int64_t i = count; i < kLanes; ++i) result[i] = otherwise;
    return result;
  }
  template <typename T>
  static void put(T* to, Float value, int64_t count) {
    if (count == kLanes) return store(to, value);
    T values[kLanes];
    store(values, value);
    for (int64_t i = 0; i < count; ++i) to[i] = values[i];
  }

  // Calls body(i, count) for each `count` <= kLanes values at `i` that make up `size`.
  template <typename Body>
  static void each(int64_t size, const Body& body) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) body(i, int64_t{kLanes});
    if (i < size) body(i, size - i);
  }
  // Folds body(part, i, count) over them, in two interleaved parts, so that an addition need not
  // wait for the one before.
  template <typename Body>
  static Float reduce(int64_t size, const Body& body) {
    Float even = all(0.0f), odd = all(0.0f);
    int64_t i = 0;
    for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
      even = body(even, i, int64_t{kLanes});
      odd = body(odd, i + kLanes, int64_t{kLanes});
    }
    each(size - i, [&](int64_t j, int64_t count) { even = body(even, i + j, count); });
    return even + odd;
  }

  // `value` as it reads after a store to T.
  template <typename T>
  static Float round_to(Float value) {
    if constexpr (sizeof(T) == 4) return value;
    T values[kLanes];
    store(values, value);
    return load(values);
  }

  static Float max(Float a, Float b) { return a > b ? a : b; }

  // The first `count` values; zeros after them.
  static Float first(Float value, int64_t count) {
    for (int64_t i = count; i < kLanes; ++i) value[i] = 0.0f;
    return value;
  }

  // Sums of halves, in an order that is the same for every call.
  static float sum(Float value) {
    float lanes[kLanes];
    store(lanes, value);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    return lanes[0];
  }
  static float largest(Float value) {
    float lanes[kLanes];
    store(lanes, value);
    for (int i = 1; i < kLanes; ++i) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
    return lanes[0];
  }

  static Float sqrt(Float value) {
    float lanes[kLanes];
    store(lanes, value);
    for (int i = 0; i < kLanes; ++i) lanes[i] = __builtin_sqrtf(lanes[i]);
    return load(lanes);
  }

  // (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2.
  static Float exp_tail(Float r) {
    Float p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    return p * r + 5.0000001201e-1f;
  }

  // e^x to 1 ulp or so: 2^n times a polynomial in the rest, which is at most ln(2) / 2. Below the
  // smallest normal number 0, above the largest infinity, NaN for NaN.
  static Float exp(Float x) {
    constexpr float kLog2E = 1.44269504088896341f, kRounder = 12582912.0f;  // 1.5 * 2^23
    constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
    const Float clamped = max(x < -87.3f ? all(-87.3f) : x, all(-87.3f));
    const Float bounded = clamped > 88.3f ? all(88.3f) : clamped;
    const Float n = (bounded * kLog2E + kRounder) - kRounder;
    const Float r = (bounded - n * kLn2High) - n * kLn2Low;
    const Float p = (exp_tail(r) * r) * r + (r + 1.0f);
    const Int exponent = __builtin_convertvector(n, Int) + 127;
    Float value = p * reinterpret_cast<Float>(exponent << 23);
    value = x < -87.3f ? all(0.0f) : value;
    value = x > 88.3f ? all(__builtin_inff()) : value;
    return x != x ? x : value;
  }
  // e^x - 1 for x <= 0, to 2 ulp or so.
  static Float expm1(Float x) { return x > -0.34f ? (exp_tail(x) * x) * x + x : exp(x) - 1.0f; }
  // log(1 + x) for x from -1 to 0, to 2 ulp or so; at -1 the log of the smallest normal number.
  static Float log1p(Float x) {
    const Float y = max(x + 1.0f, all(1.17549435e-38f));
    const Float lost = (x - (y - 1.0f)) / y;  // of x, when it was added to 1
    const Int raw = reinterpret_cast<Int>(y);
    // y = 2^n (1 + r) with 1 + r from sqrt(1/2) to sqrt(2).
    const Float half = reinterpret_cast<Float>((raw & 0x7fffff) | 0x3f000000);
    const Int is_low = half < 0.707106781f;  // -1 where it is
    const Float n = __builtin_convertvector((raw >> 23) - 126 + is_low, Float);
    const Float r = (is_low ? half + half : half) - 1.0f;
    Float p = all(7.0376836292e-2f);
    p = p * r - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    const Float squared = r * r;
    const Float tail = (p * r) * squared + n * -2.12194440e-4f - 0.5f * squared;
    return ((tail + lost) + r) + n * 0.693359375f;
  }
};

}  // namespace
}  // namespace tessera
