// tensor_ops.h, adamw_ops.h and quantized_ops.h on CUDA tensors, which call these: the same names
// and contracts, but that work is started on the current stream and not waited for. Sums are taken
// in an order that is the same for every call; results differ from a CPU's by rounding. In a build
// without TESSERA_CUDA all throw std::runtime_error.
#pragma once

#include "worker/kernels/adamw_ops.h"
#include "worker/kernels/quantized_ops.h"
#include "worker/kernels/tensor_ops.h"

namespace tessera::cuda {

void rms_norm_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight_D, double eps);
// partial: room for the weight's sums of each part of the tokens, float32 [parts, D], each of as
// many tokens (but the last); undefined where grad_weight_D is.
void rms_norm_backward_out(const at::Tensor& grad_x, const at::Tensor& grad_weight_D,
                           const at::Tensor& partial, const at::Tensor& grad_y, const at::Tensor& x,
                           const at::Tensor& weight_D, const at::Tensor& residual, double eps,
                           int64_t tokens_a_part);
void rotate_out(const at::Tensor& y_TNH, const at::Tensor& x_TNH, const at::Tensor& cos_TH,
                const at::Tensor& sin_TH, bool back);
void swiglu_out(const at::Tensor& h_TF, const at::Tensor& gate_TF, const at::Tensor& up_TF);
void swiglu_backward_out(const at::Tensor& grad_gate_TF, const at::Tensor& grad_up_TF,
                         const at::Tensor& h_TF, const at::Tensor& grad_h_TF,
                         const at::Tensor& gate_TF, const at::Tensor& up_TF);
void label_stats_out(const LabelStatsOut& stats, const at::Tensor& exps_CV,
                     const at::Tensor& logits_CV, const at::Tensor& labels_C);
void logit_gradient_out(const at::Tensor& grad_CV, const at::Tensor& exps_CV,
                        const at::Tensor& sum_of_exps_C, const at::Tensor& labels_C,
                        const at::Tensor& grad_logprob_C, const at::Tensor& grad_mean_logprob_C);

void adamw_(const at::Tensor& weights, const AdamWMeans& means, const at::Tensor& gradients,
            const AdamWStep& step);
void adamw_bfloat_(const at::Tensor& weights, const AdamWMeans& means, const at::Tensor& gradients,
                   const AdamWStep& step, uint32_t draw);
void adamw_int8_(const at::Tensor& weights, const AdamWCodes& means, const at::Tensor& gradients,
                 const AdamWStep& step);

void dequantize_out(const at::Tensor& out, const at::Tensor& bytes, Quantization kind,
                    const QuantizedLayout& layout, int64_t begin);

}  // namespace tessera::cuda
