#include "server/agents/lifetimes.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/jobs/state.h"

namespace tessera::server {
namespace {

absl::Duration deadline_of(const JobRecord& record) {
  const google::protobuf::Duration& deadline = record.job().spec().resources().deadline();
  return absl::Seconds(deadline.seconds()) + absl::Nanoseconds(deadline.nanos());
}

// Why a job can neither be suspended nor resumed; OK: it can.
absl::Status is_ending(const JobRecord& record) {
  const v1::Job& job = record.job();
  if (record.stop().kind() != Stop::TIME && job.state() != v1::Job::CANCELLING &&
      !is_terminal(job.state())) {
    return absl::OkStatus();
  }
  return error(absl::StatusCode::kFailedPrecondition, "JOB_ENDS",
               absl::StrCat("job ", job.id(), " is ", std::string(state_name(job.state())), ": ",
                            job.reason()));
}

}  // namespace

Lifetimes::Lifetimes(JobTable& jobs, Gangs& gangs, const Clock& clock)
    : jobs_(jobs), gangs_(gangs), clock_(clock) {
  for (const auto& [number, record] : jobs_.all()) created(*record);
}

void Lifetimes::created(const JobRecord& record) {
  if (!record.job().spec().resources().has_deadline()) return;
  deadlines_.insert(
      {from_proto(record.job().create_time()) + deadline_of(record), record.number()});
}

absl::Status Lifetimes::suspend(JobRecord& record) {
  if (absl::Status status = is_ending(record); !status.ok()) return status;
  switch (record.job().state()) {
    case v1::Job::QUEUED:
      jobs_.transition(record, v1::Job::SUSPENDED, "suspended");
      break;
    case v1::Job::SUSPENDED:
      break;
    default:
      if (record.stop().kind() == Stop::SUSPEND) break;
      gangs_.stop(record, Stop::SUSPEND, "to be suspended; its ranks write a checkpoint");
  }
  return absl::OkStatus();
}

absl::Status Lifetimes::resume(JobRecord& record) {
  if (absl::Status status = is_ending(record); !status.ok()) return status;
  if (record.job().state() == v1::Job::SUSPENDED) {
    jobs_.transition(record, v1::Job::QUEUED, "resumed");
  } else if (record.stop().kind() == Stop::SUSPEND) {
    gangs_.stop(record, Stop::NONE, "resumed");
  }
  return absl::OkStatus();
}

void Lifetimes::miss_deadline(JobRecord& record) {
  const v1::Failure failure =
      make_failure(v1::Failure::TIME, absl::StrCat("did not end by resources.deadline, ",
                                                   absl::FormatDuration(deadline_of(record)),
                                                   " after its submission"));
  const v1::Job::State state = record.job().state();
  if (state == v1::Job::CANCELLING || is_terminal(state)) return;
  if (record.has_gang()) {
    gangs_.stop(record, Stop::TIME, absl::StrCat(failure.message(), "; its ranks are stopped"),
                &failure);
    return;
  }
  record.set_needs_plan(false);
  record.clear_stop();
  jobs_.transition(record, v1::Job::FAILED, failure.message(), &failure);
}

void Lifetimes::tick() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= clock_.wall()) {
    const int64_t number = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    const auto found = jobs_.all().find(number);
    if (found != jobs_.all().end()) miss_deadline(*found->second);
  }
  for (const auto& [number, record] : gangs_.active()) {
    const v1::Job::State state = record->job().state();
    if (state != v1::Job::STARTING && state != v1::Job::RUNNING) continue;
    const absl::Duration limit = time_limit(*record);
    if (gangs_.run_time(*record) < limit) continue;
    const v1::Failure failure = time_failure(limit);
    gangs_.stop(*record, Stop::TIME, absl::StrCat(failure.message(), "; its ranks are stopped"),
                &failure);
  }
}

}  // namespace tessera::server
