#include "server/telemetry/service_metrics.h"

#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "server/jobs/state.h"
#include "server/telemetry/gauge.h"

namespace tessera::server {
namespace {

const prometheus::Histogram::BucketBoundaries kCommitSeconds{
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10};

prometheus::Family<prometheus::Counter>& counter(prometheus::Registry& registry, const char* name,
                                                 const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

prometheus::Labels ended_labels(v1::Job::State state, v1::Failure::Kind kind) {
  return {{"state", state_label(state)}, {"failure", failure_label(kind)}};
}

}  // namespace

std::string failure_label(v1::Failure::Kind kind) {
  if (kind == v1::Failure::KIND_UNSPECIFIED) return "";
  return absl::AsciiStrToLower(v1::Failure::Kind_Name(kind));
}

std::string state_label(v1::Job::State state) {
  return absl::AsciiStrToLower(std::string(state_name(state)));
}

ServiceMetrics::ServiceMetrics(const Clock& clock, std::filesystem::path state_dir)
    : clock_(clock),
      state_dir_(std::move(state_dir)),
      start_(clock.wall()),
      submitted_(counter(registry_, "tessera_jobs_submitted_total", "Jobs accepted").Add({})),
      attempts_(counter(registry_, "tessera_attempts_total", "Runs of jobs started").Add({})),
      ended_(counter(registry_, "tessera_jobs_ended_total",
                     "Jobs ended, by state and, for those that failed, kind of failure")),
      restarts_(counter(registry_, "tessera_restarts_total",
                        "Runs that ended early and are to be repeated, by kind of failure")),
      commit_seconds_(prometheus::BuildHistogram()
                          .Name("tessera_commit_duration_seconds")
                          .Help("Time to place, write and commit the changes of a round")
                          .Register(registry_)
                          .Add({}, kCommitSeconds)) {
  for (int i = v1::Failure::KIND_UNSPECIFIED; i <= v1::Failure::Kind_MAX; ++i) {
    const auto kind = static_cast<v1::Failure::Kind>(i);
    ended_.Add(ended_labels(v1::Job::FAILED, kind));
    restarts_.Add({{"failure", failure_label(kind)}});
  }
  for (const v1::Job::State state : {v1::Job::SUCCEEDED, v1::Job::CANCELLED}) {
    ended_.Add(ended_labels(state, v1::Failure::KIND_UNSPECIFIED));
  }
}

void ServiceMetrics::record(const std::vector<JobChange>& changes) {
  changed_ = changed_ || !changes.empty();
  for (const JobChange& change : changes) {
    for (const v1::Event& event : change.events) {
      if (event.has_state()) count(event.state());
    }
  }
}

void ServiceMetrics::count(const v1::StateChange& change) {
  if (change.previous() == v1::Job::STATE_UNSPECIFIED) submitted_.Increment();
  if (change.state() == v1::Job::STARTING) attempts_.Increment();
  if (change.state() == v1::Job::RESTARTING) {
    restarts_.Add({{"failure", failure_label(change.failure().kind())}}).Increment();
  }
  if (!is_terminal(change.state())) return;
  const auto kind =
      change.state() == v1::Job::FAILED ? change.failure().kind() : v1::Failure::KIND_UNSPECIFIED;
  ended_.Add(ended_labels(change.state(), kind)).Increment();
}

void ServiceMetrics::time_round(const std::function<void()>& round) {
  changed_ = false;
  const absl::Duration begin = clock_.uptime();
  round();
  if (changed_) commit_seconds_.Observe(absl::ToDoubleSeconds(clock_.uptime() - begin));
}

std::vector<prometheus::MetricFamily> ServiceMetrics::collect() const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  Gauge build("tessera_build_info", "1, with the version of the coordinator");
  Gauge start("process_start_time_seconds", "When the coordinator started, in Unix time");
  Gauge available("tessera_state_available_bytes",
                  "Bytes that may still be written to the disk of the state directory");
  Gauge capacity("tessera_state_capacity_bytes", "Size of that disk");
  Gauge writable("tessera_state_writable",
                 "1: changes are taken; 0: none are, the disk of the state is full or fails");
  build.set({{"version", TESSERA_VERSION}}, 1);
  start.set({}, unix_seconds(start_));
  writable.set({}, is_writable_ ? 1 : 0);
  std::error_code failure;
  const std::filesystem::space_info space = std::filesystem::space(state_dir_, failure);
  if (!failure) {
    available.set({}, static_cast<double>(space.available));
    capacity.set({}, static_cast<double>(space.capacity));
  }
  for (Gauge* gauge : {&build, &start, &writable, &available, &capacity}) gauge->move_to(families);
  return families;
}

}  // namespace tessera::server
