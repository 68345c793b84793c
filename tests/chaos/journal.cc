#include "tests/chaos/journal.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"

namespace tessera::chaos {
namespace {

// Into a set, for one of its members at random.
constexpr size_t kMaxSteps = 64;

std::string name_of(const v1::RunId& run) {
  return absl::StrCat("job ", run.job_id(), " attempt ", run.attempt());
}

}  // namespace

void Journal::violate(const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  violate_locked(sentence);
}

void Journal::violate_locked(const std::string& sentence) {
  if (violations_.size() < max_violations_) violations_.push_back(sentence);
}

void Journal::learn(const std::string& id, int64_t revision, v1::Job::State state) {
  JobEntry& entry = jobs_[id];
  if (revision < entry.known.revision) return;
  entry.known = {revision, state};
  if (is_terminal(state)) unfinished_.erase(id);
}

void Journal::acknowledged(const std::string& request_id, const v1::Job& job) {
  const std::lock_guard lock(mutex_);
  const auto [request, is_new] = by_request_.try_emplace(request_id, job.id());
  if (request->second != job.id()) {
    violate_locked(
        absl::StrCat("request ", request_id, " made job ", request->second, " and job ", job.id()));
  }
  // Its machines may have been faster than the answer.
  JobEntry& entry = jobs_[job.id()];
  if (entry.request_id.empty()) {
    entry.request_id = request_id;
    ids_.push_back(job.id());
    if (!is_terminal(entry.known.state)) unfinished_.insert(job.id());
  } else if (entry.request_id != request_id) {
    violate_locked(absl::StrCat("job ", job.id(), " is that of request ", entry.request_id,
                                " and of ", request_id));
  }
  learn(job.id(), job.revision(), job.state());
}

void Journal::asked_to_cancel(const std::string& id) {
  const std::lock_guard lock(mutex_);
  jobs_[id].is_cancelled = true;
}

Known Journal::known(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? Known{} : found->second.known;
}

void Journal::answered(const Known& before, const v1::Job& job) {
  const std::lock_guard lock(mutex_);
  if (job.revision() < before.revision) {
    violate_locked(absl::StrCat("job ", job.id(), " is at revision ", job.revision(),
                                ", and was at ", before.revision));
  }
  if (is_terminal(before.state) && job.state() != before.state) {
    violate_locked(absl::StrCat("job ", job.id(), " is ", v1::Job::State_Name(job.state()),
                                ", and was ", v1::Job::State_Name(before.state)));
  }
  learn(job.id(), job.revision(), job.state());
}

void Journal::saw(const std::string& id, const v1::Event& event) {
  const std::lock_guard lock(mutex_);
  const v1::Job::State state = event.has_state() ? event.state().state() : jobs_[id].known.state;
  learn(id, event.revision(), state);
}

void Journal::started(const v1::RunId& run, const std::string& node) {
  const std::lock_guard lock(mutex_);
  JobEntry& entry = jobs_[run.job_id()];
  if (!entry.begun[run.attempt()].insert(node).second) {
    violate_locked(absl::StrCat(name_of(run), " was started twice on ", node));
  }
  for (const auto& [attempt, nodes] : entry.running) {
    if (attempt == run.attempt() || nodes.empty()) continue;
    violate_locked(
        absl::StrCat(name_of(run), " began while attempt ", attempt, " ran on ", *nodes.begin()));
  }
  if (!entry.complete.empty()) {
    violate_locked(absl::StrCat(name_of(run), " began after attempt ", *entry.complete.rbegin(),
                                " had come to its end"));
  }
  entry.running[run.attempt()].insert(node);
}

void Journal::ended(const v1::RunId& run, const std::string& node, int num_finished,
                    int world_size) {
  const std::lock_guard lock(mutex_);
  JobEntry& entry = jobs_[run.job_id()];
  entry.running[run.attempt()].erase(node);
  entry.num_finished[run.attempt()] += num_finished;
  if (entry.num_finished[run.attempt()] == world_size) entry.complete.insert(run.attempt());
}

std::optional<std::string> Journal::pick(std::mt19937_64& random) const {
  const std::lock_guard lock(mutex_);
  if (ids_.empty()) return std::nullopt;
  if (random() % 2 == 0 || unfinished_.empty()) return ids_[random() % ids_.size()];
  const size_t place = random() % std::min(unfinished_.size(), kMaxSteps);
  return *std::next(unfinished_.begin(), static_cast<std::ptrdiff_t>(place));
}

size_t Journal::num_jobs() const {
  const std::lock_guard lock(mutex_);
  return ids_.size();
}

size_t Journal::num_unfinished() const {
  const std::lock_guard lock(mutex_);
  return unfinished_.size();
}

std::vector<std::string> Journal::unfinished() const {
  const std::lock_guard lock(mutex_);
  return {unfinished_.begin(), unfinished_.end()};
}

std::map<std::string, JobEntry> Journal::jobs() const {
  const std::lock_guard lock(mutex_);
  return jobs_;
}

std::vector<std::string> Journal::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

}  // namespace tessera::chaos
