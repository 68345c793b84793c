#include "worker/objectives/clip_metrics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "worker/objectives/sequences.h"

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Enters what is infinite as nothing measured.
void set_if_finite(const char* name, const at::Tensor& value, MetricSums& measured) {
  const at::Tensor is_finite = value.abs() < kInfinity;
  measured.add(name, at::where(is_finite, value, at::zeros_like(value)), is_finite.to(at::kDouble));
}

}  // namespace

void measure_clipped(const ClippedRatios& clipped, const Batch& batch, Collectives& data,
                     MetricSums& measured) {
  // 0, not lacking, where there is none.
  const at::Tensor all = clipped.all_S.sum().clamp_min(kLeastCount);
  measured.add("clip_ratio/low_mean", clipped.low_S.sum(), all);
  measured.add("clip_ratio/high_mean", clipped.high_S.sum(), all);
  measured.add("clip_ratio/region_mean", (clipped.low_S + clipped.high_S).sum(), all);
  const at::Tensor of_all_N3 =
      gather_rows(at::stack({clipped.low_S, clipped.high_S, clipped.all_S}, 1), batch, data);
  const at::Tensor sizes_N = of_all_N3.select(1, 2);
  const at::Tensor none_N = at::ones_like(sizes_N) * kInfinity;
  // One more, for batches without completions.
  const at::Tensor none = at::full({1}, kInfinity, sizes_N.options());
  const auto share = [&](int64_t column, const at::Tensor& else_N) {
    return at::where(sizes_N > 0, of_all_N3.select(1, column) / sizes_N.clamp_min(1), else_N);
  };
  set_if_finite("clip_ratio/low_min", at::amin(at::cat({share(0, none_N), none})), measured);
  set_if_finite("clip_ratio/high_max", at::amax(at::cat({share(1, -none_N), -none})), measured);
}

}  // namespace tessera
