#include "worker/model/head_gradients.h"

#include <ATen/ops/isclose.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>

namespace tessera {

HeadGradients::HeadGradients(const at::Tensor& hidden_TD, const at::Tensor& weight_VD,
                             bool needs_weight, GradientSink* sink)
    : hidden_TD_(at::zeros_like(hidden_TD)), weight_VD_(weight_VD) {
  if (needs_weight || sink != nullptr) weight_gradient_.emplace(weight_VD, sink);
}

void HeadGradients::add(const at::Tensor& rows_C, const at::Tensor& hidden_CD,
                        const at::Tensor& grad_logits_CV, const at::Tensor& scratch) {
  hidden_TD_.index_copy_(0, rows_C, at::mm(grad_logits_CV, weight_VD_));
  if (weight_gradient_) weight_gradient_->add(grad_logits_CV, hidden_CD, scratch);
}

at::Tensor HeadGradients::finish_weight() {
  return weight_gradient_ ? weight_gradient_->finish() : at::Tensor();
}

bool gradients_agree(const at::Tensor& given, const at::Tensor& known) {
  const at::Tensor close = at::isclose(given, known, /*rtol=*/1e-6, /*atol=*/0).all();
  return close.is_meta() || close.item<bool>();
}

}  // namespace tessera
