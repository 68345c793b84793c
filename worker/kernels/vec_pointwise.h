// RoPE and SwiGLU. See cpu_kernels.h.
#pragma once

#include "worker/kernels/vec.h"

namespace tessera {
namespace {

template <int kLanes, typename T>
void rotate(Rows<T> y, Rows<const T> x, const T* cosine, const T* sine, bool back, int64_t num_rows,
            int64_t half) {
  using V = Vec<kLanes>;
  const float sign = back ? -1.0f : 1.0f;
  for (int64_t row = 0; row < num_rows; ++row) {
    const T *first = x[row], *second = first + half;
    T *to_first = y[row], *to_second = to_first + half;
    V::each(half, [&](int64_t i, int64_t count) {
      const auto a = V::get(first + i, count), b = V::get(second + i, count);
      const auto c = V::get(cosine + i, count), s = V::get(sine + i, count) * sign;
      V::put(to_first + i, a * c - b * s, count);
      V::put(to_second + i, b * c + a * s, count);
    });
  }
}

template <int kLanes, typename T>
void swiglu(Rows<T> h, Rows<const T> gate, Rows<const T> up, int64_t num_rows, int64_t width) {
  using V = Vec<kLanes>;
  for (int64_t row = 0; row < num_rows; ++row) {
    const T *gates = gate[row], *ups = up[row];
    T* to = h[row];
    V::each(width, [&](int64_t i, int64_t count) {
      const auto x = V::get(gates + i, count);
      const auto silu = V::template round_to<T>(x / (1.0f + V::exp(-x)));
      V::put(to + i, silu * V::get(ups + i, count), count);
    });
  }
}

template <int kLanes, typename T>
void swiglu_backward(Rows<T> grad_gate, Rows<T> grad_up, Rows<T> h, Rows<const T> grad_h,
                     Rows<const T> gate, Rows<const T> up, int64_t num_rows, int64_t width) {
  using V = Vec<kLanes>;
  for (int64_t row = 0; row < num_rows; ++row) {
    const T *gates = gate[row], *ups = up[row], *upstream = grad_h[row];
    T *to_gate = grad_gate[row], *to_up = grad_up[row];
    T* again = h.data == nullptr ? nullptr : h[row];
    V::each(width, [&](int64_t i, int64_t count) {
      const auto x = V::get(gates + i, count), u = V::get(ups + i, count);
      const auto grad = V::get(upstream + i, count);
      const auto sigmoid = 1.0f / (1.0f + V::exp(-x));
      const auto silu = x * sigmoid;
      V::put(to_gate + i, grad * u * (sigmoid + silu * (1.0f - sigmoid)), count);
      V::put(to_up + i, grad * silu, count);
      if (again != nullptr) V::put(again + i, V::template round_to<T>(silu) * u, count);
    });
  }
}

}  // namespace
}  // namespace tessera
