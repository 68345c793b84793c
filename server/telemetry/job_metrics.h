// Gauges of single jobs: their state, progress, and what their last step measured.
#pragma once

#include <vector>

#include <prometheus/metric_family.h>

#include "server/telemetry/gauge.h"
#include "server/telemetry/series.h"

namespace tessera::server {

// What every series of a job has: its id and its name.
Labels job_labels(const JobSeries& series);

void add_job_metrics(const std::vector<const JobSeries*>& jobs,
                     std::vector<prometheus::MetricFamily>& families);

}  // namespace tessera::server
