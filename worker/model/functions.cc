#include "worker/model/functions.h"

#include <ATen/ops/empty_like.h>
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

struct RmsNorm : Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight_D,
                            double eps) {
    ctx->save_for_backward({x, weight_D});
    ctx->saved_data["eps"] = eps;
    at::Tensor y = make_like(x);
    rms_norm_out(y, x, weight_D, eps);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight_D = saved[1];
    const double eps = ctx->saved_data["eps"].toDouble();
    const bool wants_weight = ctx->needs_input_grad(1);
    const at::Tensor grad_x = make_like(x);
    at::Tensor grad_weight;
    if (wants_weight) grad_weight = at::zeros(weight_D.sizes(), x.options().dtype(at::kFloat));
    rms_norm_backward_out(grad_x, grad_weight, grads[0].contiguous(), x, weight_D, {}, eps);
    if (wants_weight) grad_weight = grad_weight.to(weight_D.scalar_type());
    return {grad_x, grad_weight, at::Tensor()};
  }
};

struct SwiGlu : Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_TF,
                            const at::Tensor& up_TF) {
    ctx->save_for_backward({gate_TF, up_TF});
    at::Tensor h_TF = make_like(gate_TF);
    swiglu_out(h_TF, gate_TF, up_TF);
    return h_TF;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &gate_TF = saved[0], &up_TF = saved[1];
    const at::Tensor grad_gate = make_like(gate_TF), grad_up = make_like(up_TF);
    swiglu_backward_out(grad_gate, grad_up, {}, grads[0].contiguous(), gate_TF, up_TF);
    return {grad_gate, grad_up};
  }
};

at::Tensor rotated(const at::Tensor& x_TNH, const at::Tensor& cos_TH, const at::Tensor& sin_TH,
                   bool back) {
  const at::Tensor out = make_like(x_TNH);
  rotate_out(out, x_TNH, cos_TH, sin_TH, back);
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
