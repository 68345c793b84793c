// What an objective measured of a rank's part of a microbatch, gathered on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string_view>
#include <vector>

#include "proto/spec/method_metrics.h"

namespace tessera {

inline constexpr char kLossMetric[] = "loss";
// The least count of a metric that may lack elsewhere, and is 0 where there is nothing to count.
inline constexpr double kLeastCount = 1e-9;

// Pairs of a sum and what it is a sum over: tokens, rows or documents. Both are added up over
// ranks, and their quotient is the metric. Ranks that all know the value of the whole microbatch
// may each add it with the same count.
class MetricSums {
 public:
  // A scalar of any type; names live as long as this. `count` may be a device's.
  void add(std::string_view name, const at::Tensor& sum, const at::Tensor& count);
  void add(std::string_view name, const at::Tensor& sum, double count);
  // float64 [names, 2], in the order of `metrics`. Requires nothing else, and each of
  // them but for those that may lack, which are zeros then.
  at::Tensor in_order(const std::vector<spec::MethodMetric>& metrics) const;

 private:
  struct Pair {
    at::Tensor sum, count;  // float64 scalars
  };
  std::map<std::string_view, Pair> pairs_;
};

}  // namespace tessera
