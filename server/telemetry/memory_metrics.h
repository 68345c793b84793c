// Gauges of the memory of jobs' ranks.
//
// A job has at most kMaxRanksOfJob ranks there, the first ones, and a rank one series an owner and
// space: labels stay bounded however large the jobs are.
#pragma once

#include <vector>

#include <prometheus/metric_family.h>

#include "server/telemetry/series.h"

namespace tessera::server {

inline constexpr size_t kMaxRanksOfJob = 64;

void add_memory_metrics(const std::vector<const JobSeries*>& jobs,
                        std::vector<prometheus::MetricFamily>& families);

}  // namespace tessera::server
