#include "worker/model/router_balance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/kernels/stand_in.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Watch : Function<Watch> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits_TE, int64_t balance,
                            int64_t first_token) {
    ctx->save_for_backward({logits_TE});
    ctx->saved_data["balance"] = balance;
    ctx->saved_data["first_token"] = first_token;
    return logits_TE.view_as(logits_TE);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto* balance =
        reinterpret_cast<const RouterBalance*>(ctx->saved_data["balance"].toInt());
    return {balance->with_gradient(grads[0], ctx->get_saved_variables()[0],
                                   ctx->saved_data["first_token"].toInt()),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

void RouterBalance::begin(int64_t num_tokens, double weight) {
  num_tokens_ = num_tokens;
  weight_ = weight;
  open_ = weight != 0;
  sums_.reset();
}

at::Tensor RouterBalance::watch(const at::Tensor& logits_TE, int64_t first_token) {
  if (open_) count(logits_TE, first_token);
  return Watch::apply(logits_TE, reinterpret_cast<int64_t>(this), first_token);
}

// The first tokens of these, of which padding is none.
int64_t RouterBalance::num_counted(const at::Tensor& logits_TE, int64_t first_token) const {
  return std::clamp(num_tokens_ - first_token, int64_t{0}, logits_TE.size(0));
}

// In the logits' own dtype up to the sums, as transformers has it.
void RouterBalance::count(const at::Tensor& logits_TE, int64_t first_token) {
  const c10::AutoGradMode no_grad(false);
  if (!sums_.defined())
    sums_ = at::zeros({2 * num_experts_ + 1}, logits_TE.options().dtype(at::kDouble));
  const int64_t num_tokens = num_counted(logits_TE, first_token);
  const at::Tensor probabilities = logits_TE.narrow(0, 0, num_tokens).softmax(-1);
  const at::Tensor chosen = std::get<1>(probabilities.topk(num_experts_per_token_, -1));
  sums_.narrow(0, 0, num_experts_).add_(at::bincount(chosen.flatten(), {}, num_experts_));
  sums_.narrow(0, num_experts_, num_experts_).add_(probabilities.sum(0, false, at::kDouble));
  sums_.narrow(0, 2 * num_experts_, 1).add_(num_tokens);
}

double RouterBalance::finish() {
  const c10::AutoGradMode no_grad(false);
  if (!open_) return 0;
  open_ = false;
  if (sum_) sum_(sums_);
  const at::Tensor counts = sums_.narrow(0, 0, num_experts_);
  const at::Tensor probabilities = sums_.narrow(0, num_experts_, num_experts_);
  const double rows = std::max(1.0, host_value(sums_.narrow(0, 2 * num_experts_, 1)));
  const double scale = static_cast<double>(num_experts_) / (rows * rows);
  gradient_ = (counts * (weight_ * scale)).to(at::kFloat);
  return host_value((counts * probabilities).sum()) * scale;
}

at::Tensor RouterBalance::with_gradient(const at::Tensor& grad_TE, const at::Tensor& logits_TE,
                                        int64_t first_token) const {
  if (weight_ == 0) return grad_TE;
  const int64_t num_tokens = num_counted(logits_TE, first_token);
  const at::Tensor counted = logits_TE.narrow(0, 0, num_tokens);
  const at::Tensor upstream = gradient_.to(logits_TE.scalar_type()).expand_as(counted).contiguous();
  at::Tensor sum_TE = grad_TE.clone();
  sum_TE.narrow(0, 0, num_tokens)
      .add_(at::_softmax_backward_data(upstream, counted.softmax(-1), -1, logits_TE.scalar_type()));
  return sum_TE;
}

}  // namespace tessera
