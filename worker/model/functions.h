// The differentiable functions of a decoder block. Each saves only what its backward needs. The
// plain formula stands beside each in tests/worker/model/functions_test.cc.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

// x_TD * rsqrt(mean(x_TD^2 over D) + eps) * weight_D. The mean is taken in float32 and the normed
// value rounded to x's dtype before the weight, as transformers does.
at::Tensor rms_norm(const at::Tensor& x_TD, const at::Tensor& weight_D, double eps);

// silu(gate_TF) * up_TF.
at::Tensor swiglu(const at::Tensor& gate_TF, const at::Tensor& up_TF);

// Rotary embedding on x [T, N, H]: the two halves of H are a pair, turned by the angle whose cosine
// and sine are cos_TH, sin_TH [T, H / 2].
at::Tensor rotate(const at::Tensor& x_TNH, const at::Tensor& cos_TH, const at::Tensor& sin_TH);

}  // namespace tessera
