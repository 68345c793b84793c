// AdamW of cpu_kernels.h on tensors, spread over LibTorch's threads; on a GPU the kernels of
// worker/kernels/cuda, on the current stream. Nothing here knows autograd.
//
// Tensors are contiguous, one-dimensional and on one device; weights and gradients are float32 of
// one length. The gradients are scaled on the way, and stay as they are. No result depends on the
// number of threads. Where the tensors have no data nothing is computed; on_host: they stand for
// host memory, also in the job of a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/kernels/cpu_kernels.h"

namespace tessera {

// A weight's running means of its gradient and of the gradient's square.
struct AdamWMeans {
  at::Tensor exp_avg, exp_avg_sq;

  AdamWMeans narrow(int64_t begin, int64_t count) const {
    return {exp_avg.narrow(0, begin, count), exp_avg_sq.narrow(0, begin, count)};
  }
};

// In 8 bits: codes (uint8) of signed_dynamic_map() and unsigned_dynamic_map(), and the largest size
// of each kAdamWBlock of them (float32).
struct AdamWCodes {
  AdamWMeans codes, scales;
};

// One update of weights with float32 means.
void adamw_(const at::Tensor& weights, const AdamWMeans& means, const at::Tensor& gradients,
            const AdamWStep& step, bool on_host = false);
// With bfloat16 means: rounded up or down at random, by `draw` + i for element i.
void adamw_bfloat_(const at::Tensor& weights, const AdamWMeans& means, const at::Tensor& gradients,
                   const AdamWStep& step, uint32_t draw, bool on_host = false);
// With means in 8 bits.
void adamw_int8_(const at::Tensor& weights, const AdamWCodes& means, const at::Tensor& gradients,
                 const AdamWStep& step, bool on_host = false);

}  // namespace tessera
