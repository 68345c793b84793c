// cpu_kernels.h on tensors, spread over LibTorch's threads; on a GPU the kernels of
// worker/kernels/cuda, on the current stream. Nothing here knows autograd.
//
// All tensors are on one device; `x` and what has its type are float32 or bfloat16. On tensors that
// stand for such (stand_in.h) a function allocates what it would, and computes
// nothing. Tensors of values may have any strides but a last one of 1, as parts of a merged product
// have. Outputs are written, not made, and may be the inputs of the same shape. No result depends
// on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/kernels/cpu_kernels.h"

namespace tessera {

// Whether divergence_out() takes such a tensor, which has no kernel for a GPU.
bool has_cpu_kernels(const at::Tensor& x);

// y = x * rsqrt(mean(x^2 over D) + eps) * weight_D; x and y [..., D] of two or three dimensions.
void rms_norm_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight_D, double eps);
// grad_x = residual + the gradient of that (residual undefined: without); the weight's, summed over
// all but D, is added to grad_weight_D (float32; undefined: it is not made).
void rms_norm_backward_out(const at::Tensor& grad_x, const at::Tensor& grad_weight_D,
                           const at::Tensor& grad_y, const at::Tensor& x,
                           const at::Tensor& weight_D, const at::Tensor& residual, double eps);

// Turns the two halves of x [T, N, H] by the angles of cos_TH and sin_TH [T, H / 2], contiguous, or
// back by them.
void rotate_out(const at::Tensor& y_TNH, const at::Tensor& x_TNH, const at::Tensor& cos_TH,
                const at::Tensor& sin_TH, bool back);

// h_TF = silu(gate_TF) * up_TF.
void swiglu_out(const at::Tensor& h_TF, const at::Tensor& gate_TF, const at::Tensor& up_TF);
// The gradients of that, and h_TF once more unless it is undefined.
void swiglu_backward_out(const at::Tensor& grad_gate_TF, const at::Tensor& grad_up_TF,
                         const at::Tensor& h_TF, const at::Tensor& grad_h_TF,
                         const at::Tensor& gate_TF, const at::Tensor& up_TF);

// What rows of logits say of their labels, float32 [C] each; exps_CV (float32, may be the logits)
// is left proportional to the softmax, with its sum in sum_of_exps_C. The last two, the mean of the
// logits and the log of the sum of p^2, may be undefined: then they are not made.
struct LabelStatsOut {
  at::Tensor logprob_C, mean_logprob_C, entropy_C, correct_C, sum_of_exps_C;
  at::Tensor mean_logit_C, log_sum_sq_C;
};
void label_stats_out(const LabelStatsOut& stats, const at::Tensor& exps_CV,
                     const at::Tensor& logits_CV, const at::Tensor& labels_C);
// The gradient of the logits, from the float32 gradients [C] of logprob_C and, unless undefined,
// mean_logprob_C.
void logit_gradient_out(const at::Tensor& grad_CV, const at::Tensor& exps_CV,
                        const at::Tensor& sum_of_exps_C, const at::Tensor& labels_C,
                        const at::Tensor& grad_logprob_C, const at::Tensor& grad_mean_logprob_C);

// The generalised Jensen-Shannon divergence (CpuTypedKernels::divergence) of each row's softmaxes,
// float32 [C]; and, unless it is undefined, grad_CV: the gradient of the student's logits from that
// of divergence_C, float32 [C]. It may be either of the logits.
void divergence_out(const at::Tensor& divergence_C, const at::Tensor& grad_CV,
                    const at::Tensor& student_CV, const at::Tensor& teacher_CV, double beta,
                    const at::Tensor& grad_divergence_C);

}  // namespace tessera
