#include "server/telemetry/series.h"

#include <algorithm>

#include "server/jobs/state.h"

namespace tessera::server {
namespace {

// Long enough for a scraper to see the last values, short enough that labels do not pile up.
constexpr absl::Duration kKeepEnded = absl::Minutes(10);
constexpr size_t kMaxEnded = 100;

}  // namespace

void JobSeries::update(const v1::Job& told) {
  job.set_id(told.id());
  job.mutable_spec()->set_name(told.spec().name());
  job.set_state(told.state());
  job.set_attempt(told.attempt());
  job.set_restarts(told.restarts());
  *job.mutable_create_time() = told.create_time();
  if (told.has_rehearsal()) {
    job.mutable_rehearsal()->set_peak_bytes(told.rehearsal().peak_bytes());
  }
  job.clear_peak();
  if (told.has_peak()) *job.mutable_peak() = told.peak();
}

void JobSeries::add(const v1::Event& event) {
  if (event.has_step()) step = event.step();
  if (event.has_memory()) memory[event.memory().rank()] = event.memory();
  if (event.has_state()) state_time = from_proto(event.time());
  if (event.has_step() || event.has_eval() || event.has_checkpoint() || event.has_generation()) {
    progress_time = from_proto(event.time());
  }
}

void Telemetry::restore(const v1::Job& job, const std::vector<v1::Event>& events) {
  std::lock_guard lock(mutex_);
  note(job, events);
}

void Telemetry::record(const std::vector<JobChange>& changes) {
  std::lock_guard lock(mutex_);
  for (const JobChange& change : changes) note(change.job, change.events);
  forget_old();
}

void Telemetry::note(const v1::Job& job, const std::vector<v1::Event>& events) {
  if (job.attempt() == 0 && !is_terminal(job.state())) {
    // Suspended and resumed it waits anew, and its place in the queue is that of its creation.
    if (job.state() == v1::Job::QUEUED) {
      waiting_[job.id()] = from_proto(job.create_time());
    } else {
      waiting_.erase(job.id());
    }
    return;
  }
  waiting_.erase(job.id());
  JobSeries& series = series_[job.id()];
  series.update(job);
  for (const v1::Event& event : events) series.add(event);
  if (is_terminal(job.state())) ended_.insert({clock_.uptime(), job.id()});
}

std::vector<JobSeries> Telemetry::recent() {
  std::lock_guard lock(mutex_);
  forget_old();
  std::vector<JobSeries> all;
  for (const auto& [id, series] : series_) all.push_back(series);
  return all;
}

absl::Time Telemetry::oldest_queued() {
  std::lock_guard lock(mutex_);
  absl::Time oldest = absl::InfiniteFuture();
  for (const auto& [id, since] : waiting_) oldest = std::min(oldest, since);
  for (const auto& [id, series] : series_) {
    if (series.job.state() != v1::Job::QUEUED) continue;
    const bool is_known = series.state_time != absl::InfinitePast();
    oldest = std::min(oldest, is_known ? series.state_time : from_proto(series.job.create_time()));
  }
  return oldest;
}

void Telemetry::forget_old() {
  const absl::Duration horizon = clock_.uptime() - kKeepEnded;
  while (ended_.size() > kMaxEnded || (!ended_.empty() && ended_.begin()->first < horizon)) {
    series_.erase(ended_.begin()->second);
    ended_.erase(ended_.begin());
  }
}

}  // namespace tessera::server
