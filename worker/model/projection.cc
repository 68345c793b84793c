#include "worker/model/projection.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include "worker/kernels/row_product.h"

namespace tessera {
namespace {

// Whether matrix b begins where a ends.
bool adjoins(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1) && a.is_contiguous() &&
         b.is_contiguous() && a.scalar_type() == b.scalar_type() &&
         a.storage().is_alias_of(b.storage()) &&
         a.storage_offset() + a.numel() == b.storage_offset();
}

// The matrix that begins where `a` does.
at::Tensor with_rows(const at::Tensor& a, int64_t rows) {
  if (rows == a.size(0)) return a;
  return a.as_strided({rows, a.size(1)}, {a.size(1), 1}, a.storage_offset());
}

at::Tensor with_rows_behind(const at::Tensor& a, const at::Tensor& b) {
  return with_rows(a, a.size(0) + b.size(0));
}

// multiply(the first column of y, the first matrix, rows of it and of those behind it) for all that
// are multiplied as one.
template <typename Multiply>
void each_group(const std::vector<const Linear*>& linears, at::ScalarType dtype,
                const Multiply& multiply) {
  int64_t column = 0;
  for (size_t i = 0; i < linears.size();) {
    const at::Tensor first = linears[i]->dense(dtype);
    const at::Tensor* last = &first;
    int64_t rows = first.size(0);
    for (++i; i < linears.size() && adjoins(*last, linears[i]->weight.value); ++i) {
      last = &linears[i]->weight.value;
      rows += last->size(0);
    }
    multiply(column, first, rows);
    column += rows;
  }
}

void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (add) {
    out.addmm_(a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

}  // namespace

GradientSum::GradientSum(const Parameter& parameter) {
  if (!parameter.trainable) return;
  sinks_ = {parameter.gradient_sink};
  const GradientSink::Place place = parameter.gradient_sink->place();
  sum_ = place.sum;
  begun_ = place.begun;
}

bool GradientSum::join(const GradientSum& next) {
  if (!is_wanted() && !next.is_wanted()) return true;
  if (!is_wanted() || !next.is_wanted()) return false;
  if (!adjoins(sum_, next.sum_) || begun_ != next.begun_) return false;
  sinks_.insert(sinks_.end(), next.sinks_.begin(), next.sinks_.end());
  sum_ = with_rows_behind(sum_, next.sum_);
  return true;
}

at::Tensor GradientSum::sum() {
  if (!begun_ && is_wanted()) sum_.zero_();
  begun_ = true;
  return sum_;
}

void GradientSum::add_product(const at::Tensor& grad_CO, const at::Tensor& x_CI, double scale) {
  if (!is_wanted()) return;
  if (scale == 1) {
    multiply(sum_, grad_CO.t(), x_CI, /*add=*/begun_);
  } else {
    sum_.addmm_(grad_CO.t(), x_CI, /*beta=*/begun_ ? 1 : 0, /*alpha=*/scale);
  }
  begun_ = true;
}

void GradientSum::add_rows(const at::Tensor& grad_CO) {
  if (is_wanted()) sum().add_(grad_CO.sum(0));
}

void GradientSum::finish() {
  sum();  // also where there were no parts
  for (GradientSink* sink : sinks_) sink->done();
}

int64_t Projection::width() const {
  int64_t total = 0;
  for (const Linear* linear : linears_) total += linear->weight.shape[0];
  return total;
}

template <typename Multiply>
void Projection::each_matrix(const at::Tensor& y, at::ScalarType dtype,
                             const Multiply& multiply) const {
  each_group(linears_, dtype, [&](int64_t column, const at::Tensor& first, int64_t rows) {
    multiply(y.narrow(1, column, rows), with_rows(first, rows), column);
  });
}

void Projection::forward(const at::Tensor& y, const at::Tensor& x,
                         const at::Tensor& residual) const {
  each_matrix(y, x.scalar_type(), [&](at::Tensor part, const at::Tensor& weight, int64_t column) {
    if (residual.defined()) {
      at::addmm_out(part, residual.narrow(1, column, weight.size(0)), x, weight.t());
    } else {
      at::mm_out(part, x, weight.t());
    }
  });
  int64_t column = 0;
  for (const Linear* linear : linears_) {
    const int64_t rows = linear->weight.shape[0];
    at::Tensor part = y.narrow(1, column, rows);
    if (linear->has_bias()) part.add_(linear->bias.value);
    if (const LoraAdapter* lora = linear->adapter.get()) {
      const at::Tensor low_CR = at::mm(x, lora->a.value.t());
      part.addmm_(low_CR, lora->b.value.t(), /*beta=*/1, /*alpha=*/lora->scale);
    }
    column += rows;
  }
}

void Projection::forward_by_row(const at::Tensor& y, const at::Tensor& x, bool add) const {
  const auto multiply_group = [&](int64_t column, const at::Tensor& first, int64_t rows) {
    row_product_into(y, column, x, first, rows, add);
  };
  each_group(linears_, x.scalar_type(), multiply_group);
  int64_t column = 0;
  for (const Linear* linear : linears_) {
    const int64_t rows = linear->weight.shape[0];
    if (linear->has_bias()) y.narrow(1, column, rows).add_(linear->bias.value);
    if (const LoraAdapter* lora = linear->adapter.get()) {
      const at::Tensor low_CR = at::empty({x.size(0), lora->a.shape[0]}, x.options());
      row_product_out(low_CR, x, lora->a.value);
      row_product_into(y, column, low_CR.mul_(lora->scale), lora->b.value, rows, /*add=*/true);
    }
    column += rows;
  }
}

Projection::Backward::Backward(const Projection& projection) {
  int64_t column = 0;
  for (const Linear* linear : projection.linears_) {
    const int64_t rows = linear->weight.shape[0];
    Weight next{linear, rows, {}, GradientSum(linear->weight)};
    if (!linear->weight.is_quantized()) next.value = linear->weight.value;
    Weight* last = weights_.empty() ? nullptr : &weights_.back();
    if (last != nullptr && last->value.defined() && next.value.defined() &&
        adjoins(last->value, next.value) && last->gradient.join(next.gradient)) {
      last->value = with_rows_behind(last->value, next.value);
      last->rows += rows;
    } else {
      weights_.push_back(std::move(next));
    }
    if (linear->has_bias()) biases_.push_back({column, rows, GradientSum(linear->bias)});
    if (const LoraAdapter* lora = linear->adapter.get())
      adapters_.push_back({column, rows, lora, GradientSum(lora->a), GradientSum(lora->b)});
    column += rows;
  }
}

void Projection::Backward::input_gradient(const at::Tensor& grad_x,
                                          const at::Tensor& grad_y) const {
  int64_t column = 0;
  for (const Weight& weight : weights_) {
    multiply(grad_x, grad_y.narrow(1, column, weight.rows),
             weight.value.defined() ? weight.value : weight.linear->dense(grad_y.scalar_type()),
             /*add=*/column > 0);
    column += weight.rows;
  }
  for (const Adapter& adapter : adapters_) {
    const at::Tensor grad_low_CR =
        at::mm(grad_y.narrow(1, adapter.begin, adapter.size), adapter.lora->b.value);
    at::Tensor(grad_x).addmm_(grad_low_CR, adapter.lora->a.value, /*beta=*/1,
                              /*alpha=*/adapter.lora->scale);
  }
}

void Projection::Backward::add_gradients(const at::Tensor& grad_y, const at::Tensor& x) {
  int64_t column = 0;
  for (Weight& weight : weights_) {
    weight.gradient.add_product(grad_y.narrow(1, column, weight.rows), x);
    column += weight.rows;
  }
  for (Bias& bias : biases_) bias.gradient.add_rows(grad_y.narrow(1, bias.begin, bias.size));
  for (Adapter& adapter : adapters_) {
    const at::Tensor grad_CO = grad_y.narrow(1, adapter.begin, adapter.size);
    const double scale = adapter.lora->scale;
    adapter.b.add_product(grad_CO, at::mm(x, adapter.lora->a.value.t()), scale);
    adapter.a.add_product(at::mm(grad_CO, adapter.lora->b.value), x, scale);
  }
}

void Projection::Backward::finish() {
  for (Weight& weight : weights_) weight.gradient.finish();
  for (Bias& bias : biases_) bias.gradient.finish();
  for (Adapter& adapter : adapters_) {
    adapter.b.finish();
    adapter.a.finish();
  }
}

}  // namespace tessera
