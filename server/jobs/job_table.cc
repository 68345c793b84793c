#include "server/jobs/job_table.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/jobs/state.h"

namespace tessera::server {
namespace {

constexpr std::string_view kBase32 = "abcdefghijklmnopqrstuvwxyz234567";
constexpr int kSuffixLength = 6;

// A transition outside the table is a bug of ours: the store must not take it.
void require_transition(const JobRecord& record, v1::Job::State to) {
  if (can_transition(record.job().state(), to)) return;
  std::fprintf(stderr, "job %s cannot go from %s to %s\n", record.job().id().c_str(),
               std::string(state_name(record.job().state())).c_str(),
               std::string(state_name(to)).c_str());
  std::abort();
}

}  // namespace

google::protobuf::Timestamp to_proto(absl::Time time) {
  google::protobuf::Timestamp timestamp;
  const timespec parts = absl::ToTimespec(time);
  timestamp.set_seconds(parts.tv_sec);
  timestamp.set_nanos(static_cast<int32_t>(parts.tv_nsec));
  return timestamp;
}

absl::Time from_proto(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

JobTable::JobTable(Store& store, const Clock& clock, std::function<uint32_t()> random)
    : store_(store), clock_(clock), random_(std::move(random)) {
  for (JobRecord& record : store_.unfinished()) {
    numbers_[record.job().id()] = record.number();
    const int64_t number = record.number();
    records_[number] = std::make_unique<JobRecord>(std::move(record));
  }
}

std::string JobTable::new_id(const std::string& name) {
  while (true) {
    std::string id = name + "-";
    uint32_t bits = random_();
    for (int i = 0; i < kSuffixLength; ++i, bits >>= 5) id += kBase32[bits & 31];
    if (!store_.queries().find(id).ok()) return id;
  }
}

JobRecord& JobTable::create(const v1::JobSpec& spec, const v1::JobSpec& submitted,
                            const std::string& request_id) {
  auto record = std::make_unique<JobRecord>();
  record->mutable_job()->set_id(new_id(spec.name()));
  *record->mutable_job()->mutable_spec() = spec;
  *record->mutable_job()->mutable_create_time() = to_proto(clock_.wall());
  store_.insert(*record, request_id, submitted);
  const int64_t number = record->number();
  numbers_[record->job().id()] = number;
  JobRecord& stored = *(records_[number] = std::move(record));
  transition(stored, v1::Job::QUEUED, "submitted");
  return stored;
}

JobRecord* JobTable::find(const std::string& id) {
  const auto found = numbers_.find(id);
  return found == numbers_.end() ? nullptr : records_.at(found->second).get();
}

void JobTable::transition(JobRecord& record, v1::Job::State state, const std::string& reason,
                          const v1::Failure* failure) {
  require_transition(record, state);
  v1::Event event;
  v1::StateChange& change = *event.mutable_state();
  change.set_state(state);
  change.set_previous(record.job().state());
  change.set_reason(reason);
  v1::Job& job = *record.mutable_job();
  job.set_state(state);
  job.set_reason(reason);
  if (failure != nullptr) {
    *change.mutable_failure() = *failure;
    if (state == v1::Job::FAILED) *job.mutable_failure() = *failure;
  }
  const auto now = to_proto(clock_.wall());
  if (state == v1::Job::RUNNING && !job.has_start_time()) *job.mutable_start_time() = now;
  if (is_terminal(state)) *job.mutable_end_time() = now;
  append(record, std::move(event));
}

void JobTable::append(JobRecord& record, v1::Event event) {
  if (!event.has_time()) *event.mutable_time() = to_proto(clock_.wall());
  event.set_attempt(record.job().attempt());
  Pending& change = pending(record);
  store_.append(record.number(), event);
  record.mutable_job()->set_revision(event.revision());
  change.events.push_back(std::move(event));
}

JobTable::Pending& JobTable::pending(const JobRecord& record) {
  return changes_.try_emplace(record.number(), Pending{record.job().revision(), {}}).first->second;
}

void JobTable::log(JobRecord& record, v1::LogLine::Severity severity, const std::string& text,
                   int rank) {
  v1::Event event;
  event.mutable_log()->set_severity(severity);
  event.mutable_log()->set_rank(rank);
  event.mutable_log()->set_text(text);
  append(record, std::move(event));
}

std::vector<JobRecord*> JobTable::changed() const {
  std::vector<JobRecord*> records;
  for (const auto& [number, change] : changes_) records.push_back(records_.at(number).get());
  return records;
}

std::vector<JobChange> JobTable::flush() {
  std::vector<JobChange> changes;
  for (auto& [number, change] : std::exchange(changes_, {})) {
    const JobRecord& record = *records_.at(number);
    store_.update(record);
    changes.push_back({number, record.job(), change.previous_revision, std::move(change.events)});
    if (!is_terminal(record.job().state())) continue;
    numbers_.erase(record.job().id());
    records_.erase(number);
  }
  return changes;
}

}  // namespace tessera::server
