#include "worker/objectives/metric_sums.h"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

namespace tessera {

void MetricSums::add(std::string_view name, const at::Tensor& sum, const at::Tensor& count) {
  const bool is_new =
      pairs_.try_emplace(name, Pair{sum.detach().to(at::kDouble), count.detach().to(at::kDouble)})
          .second;
  TORCH_CHECK(is_new, "an objective measured ", name, " twice");
}

void MetricSums::add(std::string_view name, const at::Tensor& sum, double count) {
  add(name, sum, at::full({}, count, sum.options().dtype(at::kDouble)));
}

at::Tensor MetricSums::in_order(const std::vector<spec::MethodMetric>& metrics) const {
  std::vector<at::Tensor> values;
  for (const spec::MethodMetric& metric : metrics) {
    const auto pair = pairs_.find(metric.name);
    TORCH_CHECK(pair != pairs_.end(), "an objective did not measure ", metric.name);
    values.insert(values.end(), {pair->second.sum, pair->second.count});
  }
  TORCH_CHECK(pairs_.size() == metrics.size(), "an objective measured what it does not name");
  return at::stack(values).view({-1, 2});
}

}  // namespace tessera
