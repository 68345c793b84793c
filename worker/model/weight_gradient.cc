#include "worker/model/weight_gradient.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

namespace tessera {

WeightGradient::WeightGradient(const at::Tensor& weight_VD, GradientSink* sink)
    : dtype_(weight_VD.scalar_type()),
      sink_(sink),
      in_sink_(sink != nullptr && sink->dtype() == at::kFloat) {
  if (in_sink_) {
    const GradientSink::Place place = sink->place();
    sum_VD_ = place.sum;
    begun_ = place.begun;
  } else {
    sum_VD_ = at::empty(weight_VD.sizes(), weight_VD.options().dtype(at::kFloat));
  }
}

void WeightGradient::add(const at::Tensor& grad_logits_CV, const at::Tensor& hidden_CD,
                         const at::Tensor& scratch) {
  if (dtype_ == at::kFloat) {
    multiply(grad_logits_CV, hidden_CD);
  } else {
    add_in_parts(grad_logits_CV, hidden_CD, scratch);
  }
  begun_ = true;
}

at::Tensor WeightGradient::finish() {
  if (!begun_) sum_VD_.zero_();
  if (in_sink_) return {};
  if (sink_ == nullptr) return sum_VD_.to(dtype_);
  const GradientSink::Place place = sink_->place();
  if (place.begun) {
    place.sum.add_(sum_VD_);
  } else {
    place.sum.copy_(sum_VD_);
  }
  sum_VD_.reset();
  return {};
}

void WeightGradient::multiply(const at::Tensor& grad_logits_CV, const at::Tensor& hidden_CD) {
  if (begun_) {
    sum_VD_.addmm_(grad_logits_CV.t(), hidden_CD);
  } else {
    at::mm_out(sum_VD_, grad_logits_CV.t(), hidden_CD);
  }
}

// The product, rounded to the compute dtype, is made for as many rows at a time as have room in
// `scratch`.
void WeightGradient::add_in_parts(const at::Tensor& grad_logits_CV, const at::Tensor& hidden_CD,
                                  const at::Tensor& scratch) {
  const int64_t num_rows = sum_VD_.size(0), width = sum_VD_.size(1);
  const at::Tensor room =
      scratch.numel() >= width ? scratch : at::empty({width}, scratch.options());
  const int64_t part_rows = std::min(num_rows, room.numel() / width);
  for (int64_t begin = 0; begin < num_rows; begin += part_rows) {
    const int64_t rows = std::min(part_rows, num_rows - begin);
    at::Tensor product = room.narrow(0, 0, rows * width).view({rows, width});
    at::mm_out(product, grad_logits_CV.narrow(1, begin, rows).t(), hidden_CD);
    at::Tensor sum = sum_VD_.narrow(0, begin, rows);
    if (begun_) {
      sum.add_(product);
    } else {
      sum.copy_(product);
    }
  }
}

}  // namespace tessera
