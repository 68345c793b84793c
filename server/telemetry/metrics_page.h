// /metrics: the Prometheus exposition of jobs, nodes and RPCs.
//
// Gauges of jobs and nodes are made anew from what there is at each scrape, so nothing has to be
// taken back when a job is long over or a node gone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <prometheus/metric_family.h>

#include "server/telemetry/series.h"

namespace tessera::server {

struct Overview {
  std::map<v1::Job::State, int64_t> jobs_by_state;
  std::vector<v1::Node> nodes;
  // Unfinished jobs that have had devices, and those that ended not long ago: series of those that
  // only wait would be as many as the queue is long.
  std::vector<JobSeries> jobs;
  // Telemetry::oldest_queued().
  absl::Time oldest_queued = absl::InfiniteFuture();
  // Of ServiceMetrics.
  std::vector<prometheus::MetricFamily> service;
  // Watchers over HTTP.
  size_t num_event_streams = 0;
};

// `others` are appended as they are.
std::string render_metrics(const Overview& overview,
                           const std::vector<prometheus::MetricFamily>& others);

}  // namespace tessera::server
