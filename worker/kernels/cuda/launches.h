// The kernels of worker/kernels/cuda on memory of the current device, without LibTorch. Each is
// started on `stream` (a cudaStream_t), and not waited for. Contracts as in cpu_kernels.h; T is
// float or Bfloat. Nothing is started where there are no rows, or values. Throw std::runtime_error
// where the device refuses, or an earlier kernel failed.
#pragma once

#include "worker/kernels/cuda/block.h"
#include "worker/kernels/cuda/logits.h"
#include "worker/kernels/cuda/quantized.h"
#include "worker/kernels/dynamic_map.h"

namespace tessera::cuda {

template <typename T>
struct RmsNormGradients {
  TokenRows<T> x;
  // [width], to which the sums of all rows are added (null: not made), and room for those of each
  // rows_a_part rows: [ceil(num_rows / rows_a_part), width].
  float *weight, *partial;
  int64_t rows_a_part;
};

template <typename T>
void rms_norm(void* stream, TokenRows<T> y, TokenRows<const T> x, const T* weight, float eps,
              int64_t num_rows, int64_t width);
template <typename T>
void rms_norm_backward(void* stream, const RmsNormGradients<T>& grads, TokenRows<const T> grad_y,
                       TokenRows<const T> x, const T* weight, TokenRows<const T> residual,
                       float eps, int64_t num_rows, int64_t width);
// Row i of cosine and sine is of token i.
template <typename T>
void rotate(void* stream, TokenRows<T> y, TokenRows<const T> x, FlatRows<const T> cosine,
            FlatRows<const T> sine, bool back, int64_t num_tokens, int64_t half);
template <typename T>
void swiglu(void* stream, FlatRows<T> h, FlatRows<const T> gate, FlatRows<const T> up,
            int64_t num_rows, int64_t width);
template <typename T>
void swiglu_backward(void* stream, FlatRows<T> grad_gate, FlatRows<T> grad_up, FlatRows<T> h,
                     FlatRows<const T> grad_h, FlatRows<const T> gate, FlatRows<const T> up,
                     int64_t num_rows, int64_t width);

// labels, and below of_label and of_mean (null: zeros), have a value a row.
template <typename T>
void label_stats(void* stream, const LabelStatsRows& out, FlatRows<float> exps,
                 FlatRows<const T> logits, const int64_t* labels, int64_t num_rows, int64_t width);
template <typename T>
void logit_gradient(void* stream, FlatRows<T> gradient, FlatRows<const float> exps,
                    const float* sums_of_exps, const float* of_label, const float* of_mean,
                    const int64_t* labels, int64_t num_rows, int64_t width);

void adamw(void* stream, float* weights, float* exp_avgs, float* exp_avg_sqs,
           const float* gradients, const AdamWStep& step, int64_t count);
void adamw_bfloat(void* stream, float* weights, Bfloat* exp_avgs, Bfloat* exp_avg_sqs,
                  const float* gradients, const AdamWStep& step, uint32_t draw, int64_t count);
void adamw_int8(void* stream, float* weights, const QuantizedRun& exp_avgs,
                const QuantizedRun& exp_avg_sqs, const float* gradients, const AdamWStep& step,
                int64_t count);

// Elements [begin, begin + count) of a matrix.
template <typename T>
void dequantize_nf4(void* stream, T* out, const Nf4Parts& parts, int64_t begin, int64_t count);
template <typename T>
void dequantize_int8(void* stream, T* out, const int8_t* codes, const float* scales, float step,
                     int64_t begin, int64_t width, int64_t count);

}  // namespace tessera::cuda
