// RMSNorm, RoPE and SwiGLU by blocks of threads (block.h); contracts as in cpu_kernels.h. `width`
// is a multiple of kLanes.
#pragma once

#include <math.h>

#include "worker/kernels/cuda/block.h"

namespace tessera::cuda {

template <int kLanes, typename Block, typename T>
TESSERA_BOTH float reciprocal_rms(const Block& block, const T* x, float eps, int64_t width) {
  const float squares = block
                            .template sum<1>(width / kLanes,
                                             [&](int64_t i) {
                                               const auto values = load<kLanes>(x, i);
                                               float sum = 0;
                                               for (const float value : values.of)
                                                 sum += value * value;
                                               return Sums<1>{sum};
                                             })
                            .of[0];
  return 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
}

template <int kLanes, typename Block, typename T>
TESSERA_BOTH void rms_norm_row(const Block& block, T* y, const T* x, const T* weight, float eps,
                               int64_t width) {
  const float scale = reciprocal_rms<kLanes>(block, x, eps, width);
  block.each(width / kLanes, [&](int64_t i) {
    auto values = load<kLanes>(x, i);
    const auto weights = load<kLanes>(weight, i);
    for (int k = 0; k < kLanes; ++k)
      values.of[k] = widened(narrowed<T>(values.of[k] * scale)) * weights.of[k];
    store<kLanes>(y, i, values);
  });
}

// The gradients of one row, of which `is_first` writes the weight's to `grad_weight` and the others
// add to it (null: nobody); rows of one block follow each other.
template <int kLanes, typename Block, typename T>
TESSERA_BOTH void rms_norm_backward_row(const Block& block, T* grad_x, float* grad_weight,
                                        bool is_first, const T* grad_y, const T* x, const T* weight,
                                        const T* residual, float eps, int64_t width) {
  const float scale = reciprocal_rms<kLanes>(block, x, eps, width);
  const float dot = block
                        .template sum<1>(width / kLanes,
                                         [&](int64_t i) {
                                           const auto values = load<kLanes>(x, i),
                                                      grads = load<kLanes>(grad_y, i);
                                           const auto weights = load<kLanes>(weight, i);
                                           float sum = 0;
                                           for (int k = 0; k < kLanes; ++k) {
                                             const float weighted =
                                                 grads.of[k] * (values.of[k] * scale);
                                             sum += weighted * weights.of[k];
                                             if (grad_weight == nullptr) continue;
                                             float* const to = grad_weight + i * kLanes + k;
                                             *to = is_first ? weighted : *to + weighted;
                                           }
                                           return Sums<1>{sum};
                                         })
                        .of[0];
  const float mean = dot / static_cast<float>(width);
  block.each(width / kLanes, [&](int64_t i) {
    auto values = load<kLanes>(x, i);
    const auto grads = load<kLanes>(grad_y, i), weights = load<kLanes>(weight, i);
    for (int k = 0; k < kLanes; ++k) {
      const float normed = values.of[k] * scale;
      values.of[k] = (grads.of[k] * weights.of[k] - normed * mean) * scale;
    }
    if (residual != nullptr) {
      const auto beside = load<kLanes>(residual, i);
      for (int k = 0; k < kLanes; ++k) values.of[k] += beside.of[k];
    }
    store<kLanes>(grad_x, i, values);
  });
}

// All heads of a token, from row `first` on; `half` is a multiple of kLanes.
template <int kLanes, typename Block, typename T>
TESSERA_BOTH void rotate_token(const Block& block, const TokenRows<T>& y,
                               const TokenRows<const T>& x, int64_t first, const T* cosine,
                               const T* sine, bool back, int64_t half) {
  const int64_t parts = half / kLanes;
  const float sign = back ? -1.0f : 1.0f;
  block.each(x.num_heads * parts, [&](int64_t index) {
    const int64_t head = index / parts, i = index % parts;
    const T* const from = x[first + head];
    T* const to = y[first + head];
    auto a = load<kLanes>(from, i), b = load<kLanes>(from + half, i);
    const auto c = load<kLanes>(cosine, i), s = load<kLanes>(sine, i);
    for (int k = 0; k < kLanes; ++k) {
      const float before = a.of[k], turn = s.of[k] * sign;
      a.of[k] = before * c.of[k] - b.of[k] * turn;
      b.of[k] = b.of[k] * c.of[k] + before * turn;
    }
    store<kLanes>(to, i, a);
    store<kLanes>(to + half, i, b);
  });
}

template <int kLanes, typename Block, typename T>
TESSERA_BOTH void swiglu_row(const Block& block, T* h, const T* gate, const T* up, int64_t width) {
  block.each(width / kLanes, [&](int64_t i) {
    auto gates = load<kLanes>(gate, i);
    const auto ups = load<kLanes>(up, i);
    for (int k = 0; k < kLanes; ++k) {
      const float x = gates.of[k];
      gates.of[k] = widened(narrowed<T>(x / (1.0f + expf(-x)))) * ups.of[k];
    }
    store<kLanes>(h, i, gates);
  });
}

// h may be null.
template <int kLanes, typename Block, typename T>
TESSERA_BOTH void swiglu_backward_row(const Block& block, T* grad_gate, T* grad_up, T* h,
                                      const T* grad_h, const T* gate, const T* up, int64_t width) {
  block.each(width / kLanes, [&](int64_t i) {
    auto gates = load<kLanes>(gate, i), ups = load<kLanes>(up, i);
    const auto grads = load<kLanes>(grad_h, i);
    Lanes<kLanes> again;
    for (int k = 0; k < kLanes; ++k) {
      const float x = gates.of[k], grad = grads.of[k], u = ups.of[k];
      const float sigmoid = 1.0f / (1.0f + expf(-x)), silu = x * sigmoid;
      again.of[k] = widened(narrowed<T>(silu)) * u;
      gates.of[k] = grad * u * (sigmoid + silu * (1.0f - sigmoid));
      ups.of[k] = grad * silu;
    }
    store<kLanes>(grad_gate, i, gates);
    store<kLanes>(grad_up, i, ups);
    if (h != nullptr) store<kLanes>(h, i, again);
  });
}

}  // namespace tessera::cuda
