#include "worker/model/functions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct RmsNorm : Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_TD,
                            const at::Tensor& weight_D, double eps) {
    const at::Tensor wide = x_TD.to(at::kFloat);
    const at::Tensor rstd_T1 = wide.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
    ctx->save_for_backward({x_TD, weight_D, rstd_T1});
    return (wide * rstd_T1).to(x_TD.scalar_type()).mul_(weight_D);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x_TD = saved[0], &weight_D = saved[1], &rstd_T1 = saved[2];
    const at::Tensor grad_TD = grads[0].to(at::kFloat);
    const at::Tensor normed_TD = x_TD.to(at::kFloat).mul_(rstd_T1);
    at::Tensor grad_weight = (grad_TD * normed_TD);
    // Every leading dimension shares the weight: tokens, and for q and k norms the heads too.
    grad_weight = grad_weight.view({-1, weight_D.size(0)}).sum(0).to(weight_D.scalar_type());
    at::Tensor grad_x = grad_TD * weight_D;
    const at::Tensor mean_T1 = (grad_x * normed_TD).mean(-1, /*keepdim=*/true);
    grad_x.sub_(normed_TD * mean_T1).mul_(rstd_T1);
    return {grad_x.to(x_TD.scalar_type()), grad_weight, at::Tensor()};
  }
};

struct SwiGlu : Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_TF,
                            const at::Tensor& up_TF) {
    ctx->save_for_backward({gate_TF, up_TF});
    return at::silu(gate_TF).mul_(up_TF);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &gate_TF = saved[0], &up_TF = saved[1];
    return {at::silu_backward(grads[0] * up_TF, gate_TF), at::silu(gate_TF).mul_(grads[0])};
  }
};

at::Tensor rotated(const at::Tensor& x_TNH, const at::Tensor& cos_TH, const at::Tensor& sin_TH) {
  const int64_t half = x_TNH.size(-1) / 2;
  const at::Tensor cos_T1H = cos_TH.unsqueeze(1), sin_T1H = sin_TH.unsqueeze(1);
  const at::Tensor first = x_TNH.narrow(-1, 0, half), second = x_TNH.narrow(-1, half, half);
  at::Tensor out = at::empty_like(x_TNH, x_TNH.options(), at::MemoryFormat::Contiguous);
  at::Tensor out_first = out.narrow(-1, 0, half), out_second = out.narrow(-1, half, half);
  out_first.copy_(first * cos_T1H).sub_(second * sin_T1H);
  out_second.copy_(second * cos_T1H).add_(first * sin_T1H);
  return out;
}

struct Rotate : Function<Rotate> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_TNH, const at::Tensor& cos_TH,
                            const at::Tensor& sin_TH) {
    ctx->save_for_backward({cos_TH, sin_TH});
    return rotated(x_TNH, cos_TH, sin_TH);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(grads[0], saved[0], saved[1].neg()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x_TD, const at::Tensor& weight_D, double eps) {
  return RmsNorm::apply(x_TD, weight_D, eps);
}

at::Tensor swiglu(const at::Tensor& gate_TF, const at::Tensor& up_TF) {
  return SwiGlu::apply(gate_TF, up_TF);
}

at::Tensor rotate(const at::Tensor& x_TNH, const at::Tensor& cos_TH, const at::Tensor& sin_TH) {
  return Rotate::apply(x_TNH, cos_TH, sin_TH);
}

}  // namespace tessera
