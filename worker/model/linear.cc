#include "worker/model/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>

#include "worker/model/dropout.h"
#include "worker/model/quantized.h"

namespace tessera {
namespace {

constexpr std::string_view kWeight = ".weight";

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

at::Tensor Linear::product(const at::Tensor& x_TI) const {
  return weight.is_quantized() ? quantized_product(x_TI, weight) : at::linear(x_TI, weight.value);
}

at::Tensor Linear::operator()(const at::Tensor& x_TI, const Stream& stream) const {
  const bool adapted = adapter && stream.adapters;
  if (adapted && adapter->has_magnitude()) return with_magnitude(x_TI, stream);
  at::Tensor y_TO;
  if (has_bias() && !weight.is_quantized()) {
    y_TO = at::linear(x_TI, weight.value, bias.value);
  } else {
    y_TO = has_bias() ? product(x_TI) + bias.value : product(x_TI);
  }
  if (!adapted) return y_TO;
  const double dropout = stream.training ? adapter->dropout : 0;
  return y_TO + lora_product(x_TI, *adapter, dropout, make_draw({stream.draw, adapter->draw}),
                             stream.drawn);
}

// Each row of W + scale * B A brought to its own length. With dropout, what the rescaling adds is
// that of the input with holes, as PEFT has it.
at::Tensor Linear::with_magnitude(const at::Tensor& x_TI, const Stream& stream) const {
  const LoraAdapter& lora = *adapter;
  const at::Tensor norms_O =
      adapted_row_norms(dense(x_TI.scalar_type()), lora).to(x_TI.scalar_type());
  const at::Tensor factor_O = lora.magnitude.value / norms_O;
  const at::Tensor plain_TO = product(x_TI);
  at::Tensor y_TO;
  if (stream.training && lora.dropout > 0) {
    const at::Tensor seen_TI =
        seeded_dropout(x_TI, lora.dropout, make_draw({stream.draw, lora.draw}), stream.drawn);
    const at::Tensor low_rank_TO = lora_product(seen_TI, lora, /*dropout=*/0, /*draw=*/0);
    y_TO = plain_TO + (factor_O - 1) * product(seen_TI) + factor_O * low_rank_TO;
  } else {
    y_TO = (plain_TO + lora_product(x_TI, lora, /*dropout=*/0, /*draw=*/0)) * factor_O;
  }
  return has_bias() ? y_TO + bias.value : y_TO;
}

}  // namespace tessera
