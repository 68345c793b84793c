#include "worker/model/projection.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

namespace tessera {
namespace {

// Whether matrix b begins where a ends.
bool adjoins(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1) && a.is_contiguous() &&
         b.is_contiguous() && a.scalar_type() == b.scalar_type() &&
         a.storage().is_alias_of(b.storage()) &&
         a.storage_offset() + a.numel() == b.storage_offset();
}

at::Tensor with_rows_behind(const at::Tensor& a, const at::Tensor& b) {
  return a.as_strided({a.size(0) + b.size(0), a.size(1)}, {a.size(1), 1}, a.storage_offset());
}

void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (add) {
    out.addmm_(a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

}  // namespace

GradientSum::GradientSum(const Parameter& parameter) : begun_(false) {
  if (!parameter.trainable) return;
  sinks_ = {parameter.gradient_sink};
  const GradientSink::Place place = parameter.gradient_sink->place();
  sum_ = place.sum;
  begun_ = place.begun;
}

bool GradientSum::join(const GradientSum& next) {
  if (sinks_.empty() || next.sinks_.empty()) return sinks_.empty() && next.sinks_.empty();
  if (!adjoins(sum_, next.sum_) || begun_ != next.begun_) return false;
  sinks_.insert(sinks_.end(), next.sinks_.begin(), next.sinks_.end());
  sum_ = with_rows_behind(sum_, next.sum_);
  return true;
}

at::Tensor GradientSum::sum() {
  if (!begun_ && sum_.defined()) sum_.zero_();
  begun_ = true;
  return sum_;
}

void GradientSum::add_product(const at::Tensor& grad_CO, const at::Tensor& x_CI) {
  if (sinks_.empty()) return;
  multiply(sum_, grad_CO.t(), x_CI, /*add=*/begun_);
  begun_ = true;
}

void GradientSum::add_rows(const at::Tensor& grad_CO) {
  if (!sinks_.empty()) sum().add_(grad_CO.sum(0));
}

void GradientSum::finish() {
  sum();  // also where there were no parts
  for (GradientSink* sink : sinks_) sink->done();
}

int64_t Projection::width() const {
  int64_t total = 0;
  for (const Matrix& matrix : matrices_) total += matrix.weight->shape[0];
  return total;
}

void Projection::forward(const at::Tensor& y, const at::Tensor& x,
                         const at::Tensor& residual) const {
  int64_t column = 0;
  for (size_t i = 0; i < matrices_.size();) {
    const int64_t begin = column;
    at::Tensor weight = matrices_[i].weight->value;
    for (++i; i < matrices_.size() && adjoins(weight, matrices_[i].weight->value); ++i)
      weight = with_rows_behind(weight, matrices_[i].weight->value);
    column += weight.size(0);
    at::Tensor part = y.narrow(1, begin, weight.size(0));
    if (residual.defined()) {
      at::addmm_out(part, residual.narrow(1, begin, weight.size(0)), x, weight.t());
    } else {
      at::mm_out(part, x, weight.t());
    }
  }
  column = 0;
  for (const Matrix& matrix : matrices_) {
    const int64_t rows = matrix.weight->shape[0];
    if (matrix.bias != nullptr) y.narrow(1, column, rows).add_(matrix.bias->value);
    column += rows;
  }
}

Projection::Backward::Backward(const Projection& projection) {
  int64_t column = 0;
  for (const Matrix& matrix : projection.matrices_) {
    const int64_t rows = matrix.weight->shape[0];
    Weight next{matrix.weight->value, GradientSum(*matrix.weight)};
    if (!weights_.empty() && adjoins(weights_.back().value, next.value) &&
        weights_.back().gradient.join(next.gradient)) {
      weights_.back().value = with_rows_behind(weights_.back().value, next.value);
    } else {
      weights_.push_back(std::move(next));
    }
    if (matrix.bias != nullptr) biases_.push_back({column, rows, GradientSum(*matrix.bias)});
    column += rows;
  }
}

void Projection::Backward::input_gradient(const at::Tensor& grad_x,
                                          const at::Tensor& grad_y) const {
  int64_t column = 0;
  for (const Weight& weight : weights_) {
    multiply(grad_x, grad_y.narrow(1, column, weight.value.size(0)), weight.value,
             /*add=*/column > 0);
    column += weight.value.size(0);
  }
}

void Projection::Backward::add_gradients(const at::Tensor& grad_y, const at::Tensor& x) {
  int64_t column = 0;
  for (Weight& weight : weights_) {
    weight.gradient.add_product(grad_y.narrow(1, column, weight.value.size(0)), x);
    column += weight.value.size(0);
  }
  for (Bias& bias : biases_) bias.gradient.add_rows(grad_y.narrow(1, bias.begin, bias.size));
}

void Projection::Backward::finish() {
  for (Weight& weight : weights_) weight.gradient.finish();
  for (Bias& bias : biases_) bias.gradient.finish();
}

}  // namespace tessera
