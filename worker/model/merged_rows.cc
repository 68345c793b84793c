#include "worker/model/merged_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include "worker/model/quantized.h"

namespace tessera {
namespace {

at::Tensor wide(const at::Tensor& x) { return x.detach().to(at::kFloat); }

}  // namespace

at::Tensor wide_rows(const Parameter& weight, int64_t first, int64_t count) {
  if (weight.is_quantized()) return dequantized_rows(weight, first, count, at::kFloat);
  return wide(weight.value.narrow(0, first, count));
}

at::Tensor merged_rows(const Linear& linear, int64_t first, int64_t count) {
  const LoraAdapter& lora = *linear.adapter;
  const auto rows = [&](const Parameter& p) { return wide(p.value.narrow(0, first, count)); };
  at::Tensor merged = wide_rows(linear.weight, first, count)
                          .add(at::mm(rows(lora.b), wide(lora.a.value)), lora.scale);
  if (!lora.has_magnitude()) return merged;
  const at::Tensor norms = at::linalg_vector_norm(merged, 2, at::OptionalIntArrayRef(1));
  return merged.mul_((rows(lora.magnitude) / norms).unsqueeze(1));
}

}  // namespace tessera
