#include "server/telemetry/metrics_page.h"

#include <prometheus/text_serializer.h>

#include "server/telemetry/gauge.h"
#include "server/telemetry/job_metrics.h"
#include "server/telemetry/memory_metrics.h"
#include "server/telemetry/service_metrics.h"

namespace tessera::server {
namespace {

void add_jobs_by_state(const Overview& overview, std::vector<prometheus::MetricFamily>& families) {
  Gauge jobs("tessera_jobs", "Jobs, by state");
  Gauge queued("tessera_queue_length", "Jobs that wait for devices");
  Gauge oldest("tessera_queue_oldest_timestamp_seconds",
               "Since when the job that waits longest for devices has waited, in Unix time");
  const auto count = [&](v1::Job::State state) {
    const auto found = overview.jobs_by_state.find(state);
    return found == overview.jobs_by_state.end() ? 0.0 : static_cast<double>(found->second);
  };
  for (int i = v1::Job::QUEUED; i <= v1::Job::State_MAX; ++i) {
    const auto state = static_cast<v1::Job::State>(i);
    jobs.set({{"state", state_label(state)}}, count(state));
  }
  queued.set({}, count(v1::Job::QUEUED));
  if (overview.oldest_queued != absl::InfiniteFuture()) {
    oldest.set({}, unix_seconds(overview.oldest_queued));
  }
  for (Gauge* gauge : {&jobs, &queued, &oldest}) gauge->move_to(families);
}

void add_nodes(const Overview& overview, std::vector<prometheus::MetricFamily>& families) {
  Gauge up("tessera_node_up", "1 where the machine's agent keeps its lease, 0 where it is lost");
  Gauge seen("tessera_node_last_seen_timestamp_seconds",
             "When the machine's agent was last heard, in Unix time");
  std::map<std::string, double> nodes{{"ready", 0}, {"lost", 0}};
  std::map<std::pair<std::string, std::string>, double> devices;
  for (const v1::Node& node : overview.nodes) {
    const bool lost = node.state() == v1::Node::LOST;
    ++nodes[lost ? "lost" : "ready"];
    up.set({{"node", node.name()}}, lost ? 0 : 1);
    if (node.has_last_seen_time()) {
      seen.set({{"node", node.name()}}, unix_seconds(from_proto(node.last_seen_time())));
    }
    for (const v1::Device& device : node.devices()) {
      ++devices[{device.kind(), lost ? "lost" : device.job().empty() ? "free" : "held"}];
    }
  }
  Gauge nodes_gauge("tessera_nodes", "Machines with an agent, by state");
  Gauge devices_gauge("tessera_devices", "Devices, by kind and state");
  for (const auto& [state, count] : nodes) nodes_gauge.set({{"state", state}}, count);
  for (const auto& [key, count] : devices) {
    devices_gauge.set({{"kind", key.first}, {"state", key.second}}, count);
  }
  for (Gauge* gauge : {&nodes_gauge, &up, &seen, &devices_gauge}) gauge->move_to(families);
}

void add_event_streams(const Overview& overview, std::vector<prometheus::MetricFamily>& families) {
  Gauge gauge("tessera_http_event_streams", "Watchers that follow a job over HTTP");
  gauge.set({}, static_cast<double>(overview.num_event_streams));
  gauge.move_to(families);
}

}  // namespace

std::string render_metrics(const Overview& overview,
                           const std::vector<prometheus::MetricFamily>& others) {
  std::vector<prometheus::MetricFamily> families;
  add_jobs_by_state(overview, families);
  add_nodes(overview, families);
  add_event_streams(overview, families);
  std::vector<const JobSeries*> jobs;
  for (const JobSeries& series : overview.jobs) jobs.push_back(&series);
  add_job_metrics(jobs, families);
  add_memory_metrics(jobs, families);
  families.insert(families.end(), overview.service.begin(), overview.service.end());
  families.insert(families.end(), others.begin(), others.end());
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace tessera::server
