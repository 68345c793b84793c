#include "server/telemetry/metrics_page.h"

#include <prometheus/text_serializer.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/jobs/state.h"
#include "server/telemetry/gauge.h"
#include "server/telemetry/memory_metrics.h"

namespace tessera::server {
namespace {

// Of a job. More than any method has: a bound, since they come from its ranks.
constexpr size_t kMaxMethodMetrics = 64;

std::string label_of(v1::Job::State state) {
  return absl::AsciiStrToLower(std::string(state_name(state)));
}

void add_jobs_by_state(const Overview& overview, std::vector<prometheus::MetricFamily>& families) {
  Gauge jobs("tessera_jobs", "Jobs, by state");
  Gauge queued("tessera_queue_length", "Jobs that wait for devices");
  const auto count = [&](v1::Job::State state) {
    const auto found = overview.jobs_by_state.find(state);
    return found == overview.jobs_by_state.end() ? 0.0 : static_cast<double>(found->second);
  };
  for (int i = v1::Job::QUEUED; i <= v1::Job::State_MAX; ++i) {
    const auto state = static_cast<v1::Job::State>(i);
    jobs.set({{"state", label_of(state)}}, count(state));
  }
  queued.set({}, count(v1::Job::QUEUED));
  jobs.move_to(families);
  queued.move_to(families);
}

void add_nodes(const Overview& overview, std::vector<prometheus::MetricFamily>& families) {
  std::map<std::string, double> nodes{{"ready", 0}, {"lost", 0}};
  std::map<std::pair<std::string, std::string>, double> devices;
  for (const v1::Node& node : overview.nodes) {
    const bool lost = node.state() == v1::Node::LOST;
    ++nodes[lost ? "lost" : "ready"];
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
  nodes_gauge.move_to(families);
  devices_gauge.move_to(families);
}

// What the method measures, of the last step.
void add_method_metrics(const Overview& overview, std::vector<prometheus::MetricFamily>& families) {
  Gauge gauge("tessera_job_metric",
              "Metric of the job's method since the last step event, by name");
  for (const JobSeries& series : overview.jobs) {
    if (series.steps.empty()) continue;
    // In the order of names, so that the same ones are shown each time.
    const auto& last = series.steps.back().metrics();
    const std::map<std::string, double> metrics(last.begin(), last.end());
    size_t shown = 0;
    for (const auto& [name, value] : metrics) {
      if (++shown > kMaxMethodMetrics) break;
      gauge.set({{"job", series.job.id()}, {"name", series.job.spec().name()}, {"metric", name}},
                value);
    }
  }
  gauge.move_to(families);
}

void add_job_metrics(const Overview& overview, std::vector<prometheus::MetricFamily>& families) {
  Gauge step("tessera_job_step", "Optimizer steps taken");
  Gauge total("tessera_job_total_steps", "Optimizer steps the job will take");
  Gauge loss("tessera_job_loss", "Loss since the last step event");
  Gauge norm("tessera_job_grad_norm", "Gradient norm of the last step before clipping");
  Gauge rate("tessera_job_learning_rate", "Learning rate of the last step");
  Gauge speed("tessera_job_tokens_per_second", "Tokens per second in the last step");
  Gauge restarts("tessera_job_restarts", "Restarts since the last checkpoint");
  Gauge predicted("tessera_job_predicted_peak_bytes", "Peak of tensor bytes of a rank, rehearsed");
  Gauge measured("tessera_job_measured_peak_bytes", "Peak of tensor bytes of a rank, measured");
  for (const JobSeries& series : overview.jobs) {
    const Labels labels{{"job", series.job.id()}, {"name", series.job.spec().name()}};
    restarts.set(labels, series.job.restarts());
    if (series.job.has_rehearsal()) {
      predicted.set(labels, static_cast<double>(series.job.rehearsal().peak_bytes()));
    }
    if (series.job.has_peak()) {
      measured.set(labels, static_cast<double>(series.job.peak().measured_bytes()));
    }
    if (!series.steps.empty()) {
      const v1::StepMetrics& last = series.steps.back();
      step.set(labels, last.step());
      total.set(labels, last.total_steps());
      loss.set(labels, last.loss());
      norm.set(labels, last.grad_norm());
      rate.set(labels, last.learning_rate());
      speed.set(labels, last.tokens_per_second());
    }
  }
  for (Gauge* gauge :
       {&step, &total, &loss, &norm, &rate, &speed, &restarts, &predicted, &measured}) {
    gauge->move_to(families);
  }
}

}  // namespace

std::string render_metrics(const Overview& overview,
                           const std::vector<prometheus::MetricFamily>& others) {
  std::vector<prometheus::MetricFamily> families;
  add_jobs_by_state(overview, families);
  add_nodes(overview, families);
  add_job_metrics(overview, families);
  add_method_metrics(overview, families);
  add_memory_metrics(overview.jobs, families);
  families.insert(families.end(), others.begin(), others.end());
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace tessera::server
