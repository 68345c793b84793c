#include "worker/model/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include "worker/kernels/row_product.h"
#include "worker/model/dropout.h"
#include "worker/model/quantized.h"

namespace tessera {
namespace {

constexpr std::string_view kWeight = ".weight";

// Nothing is differentiated then.
bool is_by_row(const at::Tensor& x_TI, const Stream& stream) {
  return stream.cache != nullptr && has_row_products(x_TI);
}

at::Tensor row_product(const at::Tensor& x_TI, const at::Tensor& weight_OI) {
  at::Tensor y_TO = at::empty({x_TI.size(0), weight_OI.size(0)}, x_TI.options());
  row_product_out(y_TO, x_TI, weight_OI);
  return y_TO;
}

}  // namespace

Linear::Linear(const std::string& name, int64_t in, int64_t out, bool has_bias)
    : weight{name + std::string(kWeight), {out, in}} {
  if (has_bias) bias = {name + ".bias", {out}};
}

std::string Linear::name() const {
  return weight.name.substr(0, weight.name.size() - kWeight.size());
}

void Linear::list(std::vector<Parameter*>& parameters) {
  parameters.push_back(&weight);
  if (has_bias()) parameters.push_back(&bias);
  if (!adapter) return;
  parameters.insert(parameters.end(), {&adapter->a, &adapter->b});
  if (adapter->has_magnitude()) parameters.push_back(&adapter->magnitude);
}

at::Tensor Linear::dense(at::ScalarType dtype) const {
  return weight.is_quantized() ? dequantized(weight, dtype) : weight.value;
}

at::Tensor Linear::product(const at::Tensor& x_TI, const Stream& stream) const {
  if (is_by_row(x_TI, stream)) return row_product(x_TI, dense(x_TI.scalar_type()));
  return weight.is_quantized() ? quantized_product(x_TI, weight) : at::linear(x_TI, weight.value);
}

at::Tensor Linear::low_rank(const at::Tensor& x_TI, double dropout, const Stream& stream) const {
  if (is_by_row(x_TI, stream)) {
    const at::Tensor low_TR = row_product(x_TI, adapter->a.value);
    return row_product(low_TR, adapter->b.value).mul_(adapter->scale);
  }
  return lora_product(x_TI, *adapter, dropout, make_draw({stream.draw, adapter->draw}),
                      stream.drawn);
}

at::Tensor Linear::operator()(const at::Tensor& x_TI, const Stream& stream) const {
  const bool adapted = adapter && stream.adapters;
  if (adapted && adapter->has_magnitude()) return with_magnitude(x_TI, stream);
  at::Tensor y_TO;
  if (has_bias() && !weight.is_quantized() && !is_by_row(x_TI, stream)) {
    y_TO = at::linear(x_TI, weight.value, bias.value);
  } else {
    y_TO = product(x_TI, stream);
    if (has_bias()) y_TO = y_TO + bias.value;
  }
  if (!adapted) return y_TO;
  return y_TO + low_rank(x_TI, stream.training ? adapter->dropout : 0, stream);
}

// Each row of W + scale * B A brought to its own length. With dropout, what the rescaling adds is
// that of the input with holes, as PEFT has it.
at::Tensor Linear::with_magnitude(const at::Tensor& x_TI, const Stream& stream) const {
  const LoraAdapter& lora = *adapter;
  const at::Tensor norms_O =
      adapted_row_norms(dense(x_TI.scalar_type()), lora).to(x_TI.scalar_type());
  const at::Tensor factor_O = lora.magnitude.value / norms_O;
  const at::Tensor plain_TO = product(x_TI, stream);
  at::Tensor y_TO;
  if (stream.training && lora.dropout > 0) {
    const at::Tensor seen_TI =
        seeded_dropout(x_TI, lora.dropout, make_draw({stream.draw, lora.draw}), stream.drawn);
    const at::Tensor low_rank_TO = low_rank(seen_TI, /*dropout=*/0, stream);
    y_TO = plain_TO + (factor_O - 1) * product(seen_TI, stream) + factor_O * low_rank_TO;
  } else {
    y_TO = (plain_TO + low_rank(x_TI, /*dropout=*/0, stream)) * factor_O;
  }
  return has_bias() ? y_TO + bias.value : y_TO;
}

}  // namespace tessera
