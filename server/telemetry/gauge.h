// A family of gauges, for one scrape.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <prometheus/metric_family.h>

#include "absl/time/time.h"

namespace tessera::server {

// Time in Prometheus: seconds since 1970.
inline double unix_seconds(absl::Time time) {
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

using Labels = std::vector<prometheus::ClientMetric::Label>;

// The labels and one more.
inline Labels with(Labels labels, const char* name, const std::string& value) {
  labels.push_back({name, value});
  return labels;
}

class Gauge {
 public:
  Gauge(const char* name, const char* help)
      : family_{name, help, prometheus::MetricType::Gauge, {}} {}

  void set(Labels labels, double value) {
    prometheus::ClientMetric& metric = family_.metric.emplace_back();
    metric.label = std::move(labels);
    metric.gauge.value = value;
  }

  // A family without a metric is left out.
  void move_to(std::vector<prometheus::MetricFamily>& families) {
    if (!family_.metric.empty()) families.push_back(std::move(family_));
  }

 private:
  prometheus::MetricFamily family_;
};

}  // namespace tessera::server
