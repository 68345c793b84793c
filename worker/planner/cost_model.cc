#include "worker/planner/cost_model.h"

#include <algorithm>

namespace tessera {
namespace {

// Of compute, what transfers can run beside.
constexpr double kOverlap = 0.7;

double over(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

// What is left of a transfer once compute has hidden what it can.
double exposed(double transfer, double& cover) {
  const double hidden = std::min(transfer, cover);
  cover -= hidden;
  return transfer - hidden;
}

}  // namespace

double step_seconds(const v1::StepCost& cost, const DeviceRates& rates, const std::string& dtype) {
  const double flops = dtype == "bfloat16" ? rates.flops_bfloat16 : rates.flops_float32;
  if (flops <= 0) return 0;
  const double compute =
      over(cost.flops(), flops) +
      over(static_cast<double>(cost.memory_bytes()), rates.memory_bytes_per_second) +
      static_cast<double>(cost.num_operators()) * rates.operator_seconds;
  const double link = over(static_cast<double>(cost.link_bytes()), rates.link_bytes_per_second);
  const double host = over(static_cast<double>(cost.host_bytes()), rates.host_bytes_per_second);
  const double disk = over(static_cast<double>(cost.disk_bytes()), rates.disk_bytes_per_second);
  // Cores that copy do not compute.
  double cover = rates.kind == "cpu" ? 0 : kOverlap * compute;
  // The device waits for what the CPU computes.
  const double cpu = over(static_cast<double>(cost.cpu_bytes()), rates.host_bytes_per_second);
  return compute + cpu + exposed(link, cover) + exposed(host, cover) + exposed(disk, cover);
}

}  // namespace tessera
