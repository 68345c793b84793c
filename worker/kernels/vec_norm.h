// RMSNorm and its gradients on rows. See cpu_kernels.h.
#pragma once

#include "worker/kernels/vec.h"

namespace tessera {
namespace {

template <int kLanes, typename T>
float reciprocal_rms(const T* x, float eps, int64_t width) {
  using V = Vec<kLanes>;
  const auto sum = V::sum(V::reduce(width, [&](auto part, int64_t i, int64_t count) {
    const auto value = V::get(x + i, count);
    return part + value * value;
  }));
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(width) + eps);
}

template <int kLanes, typename T>
void rms_norm(Rows<T> y, Rows<const T> x, const T* weight, float eps, int64_t num_rows,
              int64_t width) {
  using V = Vec<kLanes>;
  for (int64_t row = 0; row < num_rows; ++row) {
    const T* from = x[row];
    T* to = y[row];
    const float scale = reciprocal_rms<kLanes>(from, eps, width);
    V::each(width, [&](int64_t i, int64_t count) {
      const auto normed = V::template round_to<T>(V::get(from + i, count) * scale);
      V::put(to + i, normed * V::get(weight + i, count), count);
    });
  }
}

template <int kLanes, typename T>
void rms_norm_backward(Rows<T> grad_x, float* grad_weight, Rows<const T> grad_y, Rows<const T> x,
                       const T* weight, Rows<const T> residual, float eps, int64_t num_rows,
                       int64_t width) {
  using V = Vec<kLanes>;
  for (int64_t row = 0; row < num_rows; ++row) {
    const T *from = x[row], *upstream = grad_y[row];
    const T* beside = residual.data == nullptr ? nullptr : residual[row];
    T* to = grad_x[row];
    const float scale = reciprocal_rms<kLanes>(from, eps, width);
    const float dot = V::sum(V::reduce(width, [&](auto part, int64_t i, int64_t count) {
      const auto grad = V::get(upstream + i, count);
      const auto weighted = grad * (V::get(from + i, count) * scale);
      if (grad_weight != nullptr)
        V::put(grad_weight + i, V::get(grad_weight + i, count) + weighted, count);
      return part + weighted * V::get(weight + i, count);
    }));
    const float mean = dot / static_cast<float>(width);
    V::each(width, [&](int64_t i, int64_t count) {
      const auto normed = V::get(from + i, count) * scale;
      auto grad = (V::get(upstream + i, count) * V::get(weight + i, count) - normed * mean) * scale;
      if (beside != nullptr) grad += V::get(beside + i, count);
      V::put(to + i, grad, count);
    });
  }
}

}  // namespace
}  // namespace tessera
