#include "worker/model/lora.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "worker/memory/ledger.h"
#include "worker/model/dropout.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr uint64_t kFreshAdapter = 0x6C6F7261;  // "lora": names the values of new adapters

struct LowRankProduct : Function<LowRankProduct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_TI, const at::Tensor& a_RI,
                            const at::Tensor& b_OR, double scale, double dropout, int64_t draw,
                            const std::vector<int64_t>& tokens) {
    const at::Tensor low_TR = at::mm(
        seeded_dropout(x_TI, dropout, static_cast<uint64_t>(draw), DrawnTokens::from_flat(tokens)),
        a_RI.t());
    ctx->save_for_backward({x_TI, a_RI, b_OR, low_TR});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["dropout"] = dropout;
    ctx->saved_data["draw"] = draw;
    ctx->saved_data["tokens"] = tokens;
    return at::mm(low_TR, b_OR.t()).mul_(scale);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x_TI = saved[0], &a_RI = saved[1], &b_OR = saved[2], &low_TR = saved[3];
    const double dropout = ctx->saved_data["dropout"].toDouble();
    const auto draw = static_cast<uint64_t>(ctx->saved_data["draw"].toInt());
    const DrawnTokens tokens = DrawnTokens::from_flat(ctx->saved_data["tokens"].toIntVector());
    const at::Tensor grad_TO = grads[0].contiguous() * ctx->saved_data["scale"].toDouble();
    const at::Tensor grad_low_TR = at::mm(grad_TO, b_OR);
    at::Tensor grad_x, grad_a, grad_b;
    if (ctx->needs_input_grad(2)) grad_b = at::mm(grad_TO.t(), low_TR);
    if (ctx->needs_input_grad(1))
      grad_a = at::mm(grad_low_TR.t(), seeded_dropout(x_TI, dropout, draw, tokens));
    if (ctx->needs_input_grad(0)) {
      grad_x = seeded_dropout(at::mm(grad_low_TR, a_RI), dropout, draw, tokens);
    }
    return {grad_x, grad_a, grad_b, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor lora_product(const at::Tensor& x_TI, const LoraAdapter& adapter, double dropout,
                        uint64_t draw, const DrawnTokens& tokens) {
  return LowRankProduct::apply(x_TI, adapter.a.value, adapter.b.value, adapter.scale, dropout,
                               static_cast<int64_t>(draw), tokens.flat());
}

// |w + s b A|^2 = |w|^2 + 2 s (w A^T) b + s^2 b (A A^T) b, row by row: nothing as large as the
// matrix is made.
at::Tensor adapted_row_norms(const at::Tensor& weight_OI, const LoraAdapter& adapter) {
  const c10::NoGradGuard no_grad;
  const double s = adapter.scale;
  const at::Tensor &a_RI = adapter.a.value, b_OR = adapter.b.value.to(at::kFloat);
  const at::Tensor across_OR = at::mm(weight_OI, a_RI.t()).to(at::kFloat);
  const at::Tensor wide_a_RI = a_RI.to(at::kFloat);
  const at::Tensor within_OR = at::mm(b_OR, at::mm(wide_a_RI, wide_a_RI.t()));
  const at::Tensor low_rank_O =
      across_OR.mul_(2 * s).add_(within_OR, s * s).mul_(b_OR).sum(/*dim=*/1);
  const at::Tensor norms_O = at::linalg_vector_norm(weight_OI, 2, at::OptionalIntArrayRef(1),
                                                    /*keepdim=*/false, at::kFloat);
  return norms_O.square_().add_(low_rank_O).clamp_min_(0).sqrt_();
}

void fill_fresh(const Parameter& parameter, uint64_t seed, int64_t begin, const at::Tensor& out) {
  if (parameter.fresh == Fresh::kZeros) {
    out.zero_();
    return;
  }
  const bool is_normal = parameter.fresh == Fresh::kNormal;
  TORCH_CHECK(is_normal || parameter.fresh == Fresh::kUniform, parameter.name, " is not drawn");
  const OwnerScope scope(Owner::kOther);
  // Whole, so that the values do not depend on who holds which part.
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(make_draw({seed, kFreshAdapter, make_draw(parameter.name)}));
  const at::Tensor whole = at::empty(parameter.shape, at::kFloat);
  if (is_normal) {
    whole.normal_(0, parameter.fresh_deviation, generator);
  } else {
    const double bound = 1 / std::sqrt(static_cast<double>(parameter.shape[1]));
    whole.uniform_(-bound, bound, generator);
  }
  out.copy_(whole.view({-1}).narrow(0, begin, out.numel()));
}

}  // namespace tessera
