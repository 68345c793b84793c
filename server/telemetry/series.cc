#include "server/telemetry/series.h"

#include <algorithm>

#include "server/jobs/state.h"

namespace tessera::server {
namespace {

// Long enough for a scraper to see the last values, short enough that labels do not pile up.
constexpr absl::Duration kKeepEnded = absl::Minutes(10);
constexpr size_t kMaxEnded = 100;

}  // namespace

void JobSeries::add(const v1::Event& event) {
  if (event.has_step()) {
    steps.push_back(event.step());
    if (steps.size() > kMaxSeriesSteps) steps.pop_front();
  }
  if (event.has_memory()) memory[event.memory().rank()] = event.memory();
  if (event.has_state()) state_time = from_proto(event.time());
  if (event.has_step() || event.has_eval() || event.has_checkpoint() || event.has_generation()) {
    progress_time = from_proto(event.time());
  }
}

void Telemetry::restore(const v1::Job& job, const std::vector<v1::Event>& events) {
  std::lock_guard lock(mutex_);
  JobSeries& series = entries_[job.id()].series;
  series.job = job;
  for (const v1::Event& event : events) series.add(event);
}

void Telemetry::record(const std::vector<JobChange>& changes) {
  std::lock_guard lock(mutex_);
  for (const JobChange& change : changes) {
    Entry& entry = entries_[change.job.id()];
    entry.series.job = change.job;
    for (const v1::Event& event : change.events) entry.series.add(event);
    if (is_terminal(change.job.state())) entry.ended = clock_.uptime();
  }
  if (!changes.empty()) forget_old();
}

std::vector<JobSeries> Telemetry::recent() {
  std::lock_guard lock(mutex_);
  forget_old();
  std::vector<JobSeries> all;
  for (const auto& [id, entry] : entries_) all.push_back(entry.series);
  return all;
}

void Telemetry::forget_old() {
  const absl::Duration horizon = clock_.uptime() - kKeepEnded;
  std::vector<std::pair<absl::Duration, std::string>> ended;
  for (const auto& [id, entry] : entries_) {
    if (entry.ended != absl::InfiniteDuration()) ended.emplace_back(entry.ended, id);
  }
  std::sort(ended.rbegin(), ended.rend());
  for (size_t i = 0; i < ended.size(); ++i) {
    if (i >= kMaxEnded || ended[i].first < horizon) entries_.erase(ended[i].second);
  }
}

}  // namespace tessera::server
