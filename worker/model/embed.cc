#include "worker/model/embed.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// There is a backward because an input needs a gradient, and gets none: not the weight's leaf,
// which would count that as its gradient's arrival.
struct Embed : Function<Embed> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight_VD,
                            const at::Tensor& tokens_T, int64_t padding_idx, int64_t sink) {
    ctx->save_for_backward({tokens_T});
    ctx->saved_data["padding_idx"] = padding_idx;
    ctx->saved_data["sink"] = sink;
    return at::embedding(weight_VD, tokens_T);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor tokens_T = ctx->get_saved_variables()[0];
    const int64_t padding_idx = ctx->saved_data["padding_idx"].toInt();
    auto* sink = reinterpret_cast<GradientSink*>(ctx->saved_data["sink"].toInt());
    at::Tensor grad_TD = grads[0];
    if (padding_idx >= 0) grad_TD = grad_TD * (tokens_T != padding_idx).unsqueeze(1);
    const GradientSink::Place place = sink->place();
    if (!place.begun) place.sum.zero_();
    place.sum.index_add_(0, tokens_T, grad_TD.to(place.sum.scalar_type()));
    sink->done();
    const at::Tensor none;
    return {none, none, none, none};
  }
};

}  // namespace

at::Tensor embed(const Parameter& weight, const at::Tensor& tokens_T, int64_t padding_idx) {
  if (weight.gradient_sink == nullptr) return at::embedding(weight.value, tokens_T, padding_idx);
  return Embed::apply(weight.value.detach().requires_grad_(true), tokens_T, padding_idx,
                      reinterpret_cast<int64_t>(weight.gradient_sink));
}

}  // namespace tessera
