#include "worker/objectives/metric_sums.h"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

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
  size_t num_found = 0;
  for (const spec::MethodMetric& metric : metrics) {
    const auto pair = pairs_.find(metric.name);
    if (pair != pairs_.end()) {
      ++num_found;
      values.insert(values.end(), {pair->second.sum, pair->second.count});
      continue;
    }
    TORCH_CHECK(metric.may_lack, "an objective did not measure ", metric.name);
    const at::Tensor none = at::zeros({}, pairs_.begin()->second.sum.options());
    values.insert(values.end(), {none, none});
  }
  TORCH_CHECK(num_found == pairs_.size(), "an objective measured what it does not name");
  return at::stack(values).view({-1, 2});
}

}  // namespace tessera
