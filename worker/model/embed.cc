#include "worker/model/embed.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Elements of the matrix that are summed at a time where they cannot be summed in their place.
constexpr int64_t kSummedElements = 1 << 24;

// Adds up the rows of each token. In float32, of some columns at a time where that is not the type
// of the sum: what a frequent token adds would soon be rounded away.
void add_rows(const GradientSink::Place& place, const at::Tensor& tokens_T,
              const at::Tensor& grad_TD) {
  if (!place.begun) place.sum.zero_();
  if (place.sum.scalar_type() == at::kFloat) {
    place.sum.index_add_(0, tokens_T, grad_TD.to(at::kFloat));
    return;
  }
  const int64_t rows = place.sum.size(0), width = place.sum.size(1);
  const int64_t most = std::clamp<int64_t>(kSummedElements / rows, 1, width);
  for (int64_t begin = 0; begin < width; begin += most) {
    const int64_t count = std::min(most, width - begin);
    const at::Tensor sum =
        at::zeros({rows, count}, place.sum.options().dtype(at::kFloat))
            .index_add_(0, tokens_T, grad_TD.narrow(1, begin, count).to(at::kFloat));
    place.sum.narrow(1, begin, count).add_(sum);
  }
}

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
    add_rows(sink->place(), tokens_T, grad_TD);
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
