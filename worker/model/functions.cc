#include "worker/model/functions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/kernels/tensor_ops.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor make_like(const at::Tensor& x) {
  return at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
}

// ATen's operators where there is no kernel of ours: other devices and types.
at::Tensor rms_norm_by_aten(const at::Tensor& x, const at::Tensor& weight_D, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor rstd = wide.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
  return (wide * rstd).to(x.scalar_type()).mul_(weight_D);
}

variable_list rms_norm_backward_by_aten(const at::Tensor& grad, const at::Tensor& x,
                                        const at::Tensor& weight_D, double eps, bool wants_weight) {
  const at::Tensor wide = x.to(at::kFloat), wide_grad = grad.to(at::kFloat);
  const at::Tensor rstd = wide.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
  const at::Tensor normed = wide * rstd;
  // Every leading dimension shares the weight: tokens, and for q and k norms the heads too.
  at::Tensor grad_weight;
  if (wants_weight) {
    grad_weight = (wide_grad * normed).view({-1, weight_D.size(0)}).sum(0);
    grad_weight = grad_weight.to(weight_D.scalar_type());
  }
  at::Tensor grad_x = wide_grad * weight_D;
  const at::Tensor mean = (grad_x * normed).mean(-1, /*keepdim=*/true);
  grad_x.sub_(normed * mean).mul_(rstd);
  return {grad_x.to(x.scalar_type()), grad_weight};
}

struct RmsNorm : Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight_D,
                            double eps) {
    ctx->save_for_backward({x, weight_D});
    ctx->saved_data["eps"] = eps;
    if (!has_cpu_kernels(x)) return rms_norm_by_aten(x, weight_D, eps);
    at::Tensor y = make_like(x);
    rms_norm_out(y, x, weight_D, eps);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight_D = saved[1];
    const double eps = ctx->saved_data["eps"].toDouble();
    const bool wants_weight = ctx->needs_input_grad(1);
    variable_list made;
    if (has_cpu_kernels(x)) {
      made = {make_like(x), at::Tensor()};
      if (wants_weight) made[1] = at::zeros(weight_D.sizes(), x.options().dtype(at::kFloat));
      rms_norm_backward_out(made[0], made[1], grads[0].contiguous(), x, weight_D, {}, eps);
      if (wants_weight) made[1] = made[1].to(weight_D.scalar_type());
    } else {
      made = rms_norm_backward_by_aten(grads[0], x, weight_D, eps, wants_weight);
    }
    return {made[0], made[1], at::Tensor()};
  }
};

struct SwiGlu : Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_TF,
                            const at::Tensor& up_TF) {
    ctx->save_for_backward({gate_TF, up_TF});
    if (!has_cpu_kernels(gate_TF)) return at::silu(gate_TF).mul_(up_TF);
    at::Tensor h_TF = make_like(gate_TF);
    swiglu_out(h_TF, gate_TF, up_TF);
    return h_TF;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &gate_TF = saved[0], &up_TF = saved[1];
    if (!has_cpu_kernels(gate_TF)) {
      return {at::silu_backward(grads[0] * up_TF, gate_TF), at::silu(gate_TF).mul_(grads[0])};
    }
    const at::Tensor grad_gate = make_like(gate_TF), grad_up = make_like(up_TF);
    swiglu_backward_out(grad_gate, grad_up, {}, grads[0].contiguous(), gate_TF, up_TF);
    return {grad_gate, grad_up};
  }
};

at::Tensor rotated(const at::Tensor& x_TNH, const at::Tensor& cos_TH, const at::Tensor& sin_TH,
                   bool back) {
  at::Tensor out = make_like(x_TNH);
  if (has_cpu_kernels(x_TNH)) {
    rotate_out(out, x_TNH, cos_TH, sin_TH, back);
    return out;
  }
  const int64_t half = x_TNH.size(-1) / 2;
  const at::Tensor cos_T1H = cos_TH.unsqueeze(1);
  const at::Tensor sin_T1H = back ? sin_TH.unsqueeze(1).neg() : sin_TH.unsqueeze(1);
  const at::Tensor first = x_TNH.narrow(-1, 0, half), second = x_TNH.narrow(-1, half, half);
  at::Tensor out_first = out.narrow(-1, 0, half), out_second = out.narrow(-1, half, half);
  out_first.copy_(first * cos_T1H).sub_(second * sin_T1H);
  out_second.copy_(second * cos_T1H).add_(first * sin_T1H);
  return out;
}

struct Rotate : Function<Rotate> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_TNH, const at::Tensor& cos_TH,
                            const at::Tensor& sin_TH) {
    ctx->save_for_backward({cos_TH, sin_TH});
    return rotated(x_TNH, cos_TH, sin_TH, /*back=*/false);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(grads[0].contiguous(), saved[0], saved[1], /*back=*/true), at::Tensor(),
            at::Tensor()};
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
