// How attempts end, and what follows.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/agents/gangs.h"
#include "server/agents/peaks.h"
#include "server/jobs/state.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kMaxBackoff = absl::Seconds(30);

// What a kind of failure explains: a rank lost for memory makes its peers lose the network, never
// the other way round.
constexpr std::array kByExplanation{v1::Failure::USER,   v1::Failure::MEMORY, v1::Failure::BUG,
                                    v1::Failure::DEVICE, v1::Failure::HANG,   v1::Failure::NETWORK};

// The first retry is at once, for most faults do not come back; then 1, 2, 4 ... seconds.
absl::Duration backoff(int restarts) {
  if (restarts <= 1) return absl::ZeroDuration();
  return std::min(kMaxBackoff, absl::Seconds(1 << std::min(restarts - 2, 10)));
}

bool all_ended(const Gang& gang) {
  return std::all_of(gang.nodes().begin(), gang.nodes().end(),
                     [](const GangNode& node) { return node.ended(); });
}

}  // namespace

v1::Failure time_failure(absl::Duration limit) {
  return make_failure(v1::Failure::TIME,
                      absl::StrCat("ran for longer than resources.time_limit, which is ",
                                   absl::FormatDuration(limit)));
}

const v1::Failure& root_cause(const google::protobuf::RepeatedPtrField<v1::Failure>& failures) {
  const auto weight = [](const v1::Failure& failure) {
    return std::find(kByExplanation.begin(), kByExplanation.end(), failure.kind());
  };
  return *std::min_element(failures.begin(), failures.end(),
                           [&](auto& a, auto& b) { return weight(a) < weight(b); });
}

void Gangs::fail(JobRecord& record, const v1::Failure& failure) {
  *record.mutable_gang()->add_failures() = failure;
  jobs_.touch(record);
  const v1::Job::State state = record.job().state();
  if (state == v1::Job::STARTING || state == v1::Job::RUNNING) {
    jobs_.transition(record, v1::Job::RESTARTING, failure.message(), &failure);
    send_kill(record);
  } else if (state == v1::Job::STOPPING && record.gang().failures_size() == 1) {
    // Its peers wait for it in vain.
    send_kill(record);
  }
  settle(record);
}

void Gangs::settle(JobRecord& record) {
  if (!record.has_gang() || !all_ended(record.gang())) return;
  const v1::Job::State state = record.job().state();
  if (state == v1::Job::CANCELLING) {
    release(record);
    jobs_.transition(record, v1::Job::CANCELLED, "cancelled");
    return;
  }
  if (state == v1::Job::RESTARTING) return settle_failed(record);
  if (state == v1::Job::STOPPING) return settle_stopped(record);
  const auto& ranks = record.gang().ranks();
  const auto early = std::find_if(ranks.begin(), ranks.end(), [](const GangRank& rank) {
    return !rank.finished() || rank.stopped();
  });
  const bool is_stopped =
      std::any_of(ranks.begin(), ranks.end(), [](const GangRank& rank) { return rank.stopped(); });
  if (is_stopped && record.has_allocation()) {
    // Nobody else stops ranks that the coordinator did not.
    evict(record);
    return fail(record,
                make_failure(v1::Failure::DEVICE,
                             absl::StrCat(record.allocation().launcher(), " ends job ",
                                          record.allocation().id(), ", which its ranks ran in")));
  }
  if (early != ranks.end()) {
    const int rank = static_cast<int>(early - ranks.begin());
    return fail(record, make_failure(v1::Failure::BUG,
                                     absl::StrCat("rank ", rank,
                                                  early->stopped() ? " stopped before the last step"
                                                                   : " ended without a last event"),
                                     rank));
  }
  succeed(record);
}

void Gangs::succeed(JobRecord& record) {
  const std::string output = record.gang().output();
  // The whole run has been seen, with the largest of its microbatches; but what the last attempt
  // saw of it may be nothing but the load of a checkpoint.
  if (record.job().has_peak() && !record.gang().has_spec()) {
    v1::PeakMeasured peak = record.job().peak();
    if (saw_first_steps(record)) {
      const v1::PeakMeasured last = measured_peak(record, nodes_);
      if (last.measured_bytes() > peak.measured_bytes()) peak = last;
    }
    peak.set_device_ratio(store_.add_peak_ratio(
        peak.device(), static_cast<double>(peak.measured_bytes()) /
                           static_cast<double>(std::max<int64_t>(1, peak.predicted_bytes()))));
    *record.mutable_job()->mutable_peak() = peak;
  }
  release(record);
  jobs_.transition(record, v1::Job::SUCCEEDED,
                   output.empty() ? "every rank finished" : absl::StrCat("wrote ", output));
}

void Gangs::settle_failed(JobRecord& record) {
  const v1::Failure cause = explained(record, root_cause(record.gang().failures()));
  release(record);
  if (settle_for_replan(record, cause)) return;
  if (cause.kind() == v1::Failure::USER || cause.kind() == v1::Failure::MEMORY) {
    return jobs_.transition(record, v1::Job::FAILED, cause.message(), &cause);
  }
  if (!count_restart(record, cause)) return;
  const v1::Job& job = record.job();
  requeue(record,
          absl::StrCat("restart ", job.restarts(), " of ", job.spec().resources().max_restarts(),
                       ": ", cause.message()),
          &cause);
}

bool Gangs::count_restart(JobRecord& record, const v1::Failure& failure) {
  v1::Job& job = *record.mutable_job();
  const int budget = job.spec().resources().max_restarts();
  if (job.restarts() >= budget) {
    jobs_.transition(record, v1::Job::FAILED,
                     absl::StrCat(failure.message(), " (gave up after ", budget,
                                  budget == 1 ? " restart)" : " restarts)"),
                     &failure);
    return false;
  }
  job.set_restarts(job.restarts() + 1);
  timings_[record.number()].not_before = clock_.uptime() + backoff(job.restarts());
  jobs_.touch(record);
  return true;
}

void Gangs::evict(const JobRecord& record) {
  if (record.has_allocation()) evicted_.insert(record.number());
}

void Gangs::break_up(JobRecord& record, const v1::Failure& failure) {
  const v1::Job::State state = record.job().state();
  if (state == v1::Job::STARTING || state == v1::Job::RUNNING) fail(record, failure);
}

void Gangs::stop(JobRecord& record, Stop::Kind kind, const std::string& reason,
                 const v1::Failure* failure) {
  Stop& stop = *record.mutable_stop();
  stop.set_kind(kind);
  stop.clear_failure();
  if (failure != nullptr) *stop.mutable_failure() = *failure;
  jobs_.touch(record);
  const v1::Job::State state = record.job().state();
  if (state != v1::Job::STARTING && state != v1::Job::RUNNING) return;
  timings_[record.number()].stop_deadline = clock_.uptime() + grace_period(record);
  jobs_.transition(record, v1::Job::STOPPING, reason, failure);
  send_kill(record);
}

void Gangs::settle_stopped(JobRecord& record) {
  const auto& ranks = record.gang().ranks();
  if (std::all_of(ranks.begin(), ranks.end(),
                  [](const GangRank& rank) { return rank.finished() && !rank.stopped(); })) {
    return succeed(record);
  }
  const auto& failures = record.gang().failures();
  const v1::Failure cause = failures.empty() ? v1::Failure() : root_cause(failures);
  release(record);
  // It would end so again.
  if (cause.kind() == v1::Failure::USER) {
    return jobs_.transition(record, v1::Job::FAILED, cause.message(), &cause);
  }
  follow_stop(record);
}

void Gangs::follow_stop(JobRecord& record) {
  const Stop stop = record.stop();
  record.clear_stop();
  v1::Job& job = *record.mutable_job();
  const std::string from =
      job.has_checkpoint()
          ? absl::StrCat("; goes on from the checkpoint of step ", job.checkpoint().step())
          : "";
  switch (stop.kind()) {
    case Stop::SUSPEND:
      return jobs_.transition(record, v1::Job::SUSPENDED, absl::StrCat("suspended", from));
    case Stop::TIME:
      return jobs_.transition(record, v1::Job::FAILED, stop.failure().message(), &stop.failure());
    case Stop::PREEMPT:
      job.set_preemptions(job.preemptions() + 1);
      return requeue(record, absl::StrCat("made room for a job of higher priority", from));
    default:
      return requeue(record, absl::StrCat("resumed", from));
  }
}

void Gangs::requeue(JobRecord& record, const std::string& reason, const v1::Failure* failure) {
  if (record.stop().kind() == Stop::SUSPEND || record.stop().kind() == Stop::TIME) {
    return follow_stop(record);
  }
  record.clear_stop();
  if (run_time(record) >= time_limit(record)) {
    const v1::Failure out_of_time = time_failure(time_limit(record));
    return jobs_.transition(record, v1::Job::FAILED, out_of_time.message(), &out_of_time);
  }
  jobs_.transition(record, v1::Job::QUEUED, reason, failure);
}

bool Gangs::settle_for_replan(JobRecord& record, const v1::Failure& cause) {
  const v1::Job& job = record.job();
  if (cause.kind() != v1::Failure::MEMORY || job.spec().memory().on_oom() != "replan" ||
      record.replans() >= job.spec().resources().max_restarts()) {
    return false;
  }
  record.set_needs_plan(true);
  jobs_.log(record, v1::LogLine::WARNING, "out of memory; looking for another plan");
  return true;
}

void Gangs::release(JobRecord& record) {
  for (const GangNode& node : record.gang().nodes()) {
    v1::SessionResponse message;
    *message.mutable_release()->mutable_run() = run_of(record);
    nodes_.send(node.name(), std::move(message));
  }
  const absl::Duration run_time = this->run_time(record);
  google::protobuf::Duration& told = *record.mutable_job()->mutable_run_time();
  told.set_seconds(absl::ToInt64Seconds(run_time));
  told.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(run_time - absl::Seconds(told.seconds()))));
  record.clear_gang();
  record.mutable_job()->clear_placements();
  inquiries_.erase(record.number());
  stragglers_.erase(record.number());
  last_evals_.erase(record.number());
  timings_.erase(record.number());
  active_.erase(record.number());
}

}  // namespace tessera::server
