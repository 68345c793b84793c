// What is found out about a gang while it runs, and when it hangs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/agents/gangs.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

// For ranks to tell what they wait for. Agents keep hung ranks alive for longer (RankHung).
constexpr absl::Duration kMaxInquiry = absl::Seconds(3);

// A silence of this part of hang_timeout is looked into: it ends the attempt where a rank does not
// even answer while the others wait for it. One that answers has the whole of its time.
constexpr int kSuspicionShare = 25;
constexpr absl::Duration kMinSuspicion = absl::Seconds(5);
// And it is as many times the longest silence that this attempt went on after.
constexpr int kUsualSilences = 4;
// For ranks to answer. Only what a thread of theirs does beside their work: a machine that has
// others answer has processors for that.
constexpr absl::Duration kMaxAnswer = absl::Seconds(5);

absl::Duration hang_timeout(const JobRecord& record) {
  return absl::Seconds(record.job().spec().resources().hang_timeout().seconds());
}

const v1::Parallelism& parallelism_of(const JobRecord& record) {
  const v1::JobSpec& spec = record.gang().has_spec() ? record.gang().spec() : record.job().spec();
  return spec.parallelism();
}

absl::Status not_running(const JobRecord& record) {
  return error(absl::StatusCode::kFailedPrecondition, "JOB_NOT_RUNNING",
               absl::StrCat("job ", record.job().id(), " does not run"));
}

}  // namespace

void Gangs::relay(const JobRecord& record, const v1::TrainerCommand& command,
                  const std::vector<int>& ranks) {
  for (const GangNode& node : record.gang().nodes()) {
    if (node.ended()) continue;
    v1::SessionResponse message;
    v1::Relay& relay = *message.mutable_relay();
    *relay.mutable_run() = run_of(record);
    *relay.mutable_command() = command;
    for (const v1::Placement& placement : record.job().placements()) {
      const bool is_named =
          ranks.empty() || std::find(ranks.begin(), ranks.end(), placement.rank()) != ranks.end();
      if (placement.node() == node.name() && is_named) relay.add_ranks(placement.rank());
    }
    if (!relay.ranks().empty()) nodes_.send(node.name(), std::move(message));
  }
}

absl::Status Gangs::trace(const JobRecord& record, const v1::TraceJobRequest& request) {
  if (record.job().state() != v1::Job::RUNNING) return not_running(record);
  for (const int rank : request.ranks()) {
    if (rank >= 0 && rank < record.job().placements_size()) continue;
    return invalid_request({{"ranks", absl::StrCat("ranks has ", rank, ", must be from 0 to ",
                                                   record.job().placements_size() - 1)}});
  }
  v1::TrainerCommand command;
  command.mutable_trace_steps()->set_num_steps(std::max(1, request.num_steps()));
  command.mutable_trace_steps()->set_first_step(request.first_step());
  relay(record, command, {request.ranks().begin(), request.ranks().end()});
  return absl::OkStatus();
}

absl::Status Gangs::record_collectives(const JobRecord& record) {
  const v1::Job::State state = record.job().state();
  if (!record.has_gang() ||
      (state != v1::Job::STARTING && state != v1::Job::RUNNING && state != v1::Job::STOPPING)) {
    return not_running(record);
  }
  v1::TrainerCommand command;
  command.mutable_record_collectives();
  relay(record, command);
  return absl::OkStatus();
}

void Gangs::note_collectives(JobRecord& record, int rank, const v1::TrainerEvent& event) {
  Inquiry& inquiry = inquiries_[record.number()];
  if (!event.has_collectives()) {
    const absl::Duration now = clock_.uptime();
    // The first of the attempt ends no silence.
    if (inquiry.last_progress > absl::ZeroDuration()) {
      inquiry.longest_silence = std::max(inquiry.longest_silence, now - inquiry.last_progress);
    }
    inquiry.last_progress = now;
    inquiry.suspected_at.reset();
  }
  if (event.has_collectives()) {
    inquiry.report.records[rank] = event.collectives();
    const bool all =
        inquiry.report.records.size() == static_cast<size_t>(record.job().placements_size());
    if (inquiry.deadline && all) conclude(record);
  } else if (!event.has_log() && !event.has_failed() && !event.has_memory()) {
    // It goes on, so what it told is no longer so.
    inquiry.report.records.erase(rank);
  }
}

void Gangs::rank_hung(const std::string& node, const v1::RankHung& message) {
  const Member member = find(node, message.run());
  if (!member || node_of(*member.record, message.rank()) != node) return;
  JobRecord& record = *member.record;
  Inquiry& inquiry = inquiries_[record.number()];
  if (inquiry.deadline || !record_collectives(record).ok()) return;
  const absl::Duration idle = absl::Milliseconds(message.idle_ms());
  inquiry.rank = message.rank();
  inquiry.idle = idle;
  inquiry.deadline = clock_.uptime() + std::min(kMaxInquiry, idle / 2);
  jobs_.log(record, v1::LogLine::WARNING,
            absl::StrFormat("rank %d reported no progress for %.0f s; asking all ranks what they "
                            "wait for",
                            message.rank(), absl::ToDoubleSeconds(idle)));
}

void Gangs::conclude(JobRecord& record) {
  Inquiry& inquiry = inquiries_[record.number()];
  inquiry.deadline.reset();
  const spec::HangFinding finding = spec::explain_hang(parallelism_of(record), inquiry.report);
  const int rank = finding.rank < 0 ? inquiry.rank : finding.rank;
  const std::string idle =
      absl::StrFormat("no progress for %.0f s%s", absl::ToDoubleSeconds(inquiry.idle),
                      inquiry.rank < 0 ? "" : ", resources.hang_timeout");
  fail(record,
       make_failure(v1::Failure::HANG,
                    finding.text.empty() ? absl::StrCat("rank ", rank, " hangs (on ",
                                                        node_of(record, rank), "; ", idle, ")")
                                         : absl::StrCat(finding.text, " (rank ", rank, " runs on ",
                                                        node_of(record, rank), "; ", idle, ")"),
                    rank));
}

v1::Failure Gangs::explained(JobRecord& record, v1::Failure cause) {
  const auto found = inquiries_.find(record.number());
  if (found == inquiries_.end() || found->second.report.records.empty()) return cause;
  spec::HangReport report = found->second.report;
  for (const v1::Failure& failure : record.gang().failures()) {
    // A rank that gave the others up told what it waited for; any other one is what they miss.
    if (failure.kind() != v1::Failure::NETWORK) report.ended.insert(failure.rank());
  }
  const spec::HangFinding finding = spec::explain_hang(parallelism_of(record), report);
  if (finding.text.empty()) return cause;
  if (cause.kind() == v1::Failure::NETWORK) {
    cause.set_message(absl::StrCat(cause.message(), "; ", finding.text));
  } else if (cause.kind() != v1::Failure::HANG) {
    jobs_.log(record, v1::LogLine::INFO, finding.text);
  }
  return cause;
}

void Gangs::check_inquiries() {
  const absl::Duration now = clock_.uptime();
  std::erase_if(inquiries_, [&](const auto& entry) { return !active_.contains(entry.first); });
  std::vector<JobRecord*> due;
  for (const auto& [number, inquiry] : inquiries_) {
    if (inquiry.deadline && now > *inquiry.deadline) due.push_back(active_.at(number));
  }
  for (JobRecord* record : due) conclude(*record);
}

bool Gangs::heard_since(const JobRecord& record, absl::Duration time) const {
  const auto& members = record.gang().nodes();
  return std::all_of(members.begin(), members.end(), [&](const GangNode& member) {
    const auto node = nodes_.all().find(member.name());
    return node != nodes_.all().end() && node->second.link != nullptr &&
           node->second.last_message > time;
  });
}

void Gangs::suspect(JobRecord& record) {
  // Ranks that are done do not answer either.
  const auto& ranks = record.gang().ranks();
  if (ranks.size() < 2 || std::any_of(ranks.begin(), ranks.end(),
                                      [](const GangRank& rank) { return rank.finished(); })) {
    return;
  }
  const absl::Duration now = clock_.uptime();
  Inquiry& inquiry = inquiries_[record.number()];
  if (inquiry.last_progress == absl::ZeroDuration()) inquiry.last_progress = now;
  if (inquiry.deadline) return;
  if (inquiry.suspected_at) return check_suspicion(record, inquiry);
  const absl::Duration usual = kUsualSilences * inquiry.longest_silence;
  const absl::Duration enough =
      std::max({kMinSuspicion, usual, hang_timeout(record) / kSuspicionShare});
  if (now - inquiry.last_progress < enough || enough >= hang_timeout(record)) return;
  inquiry.suspected_at = now;
  // What they told before they were asked is no answer.
  inquiry.report.records.clear();
  // It can only be that the job ends: then there is nothing to ask.
  record_collectives(record).IgnoreError();
}

void Gangs::check_suspicion(JobRecord& record, Inquiry& inquiry) {
  const absl::Duration asked_at = *inquiry.suspected_at;
  // Once a silence. Of a node that is away nobody can say what its ranks do.
  if (clock_.uptime() - asked_at < kMaxAnswer || !heard_since(record, asked_at + kMaxAnswer / 2)) {
    return;
  }
  inquiry.suspected_at = absl::InfiniteDuration();
  const auto& records = inquiry.report.records;
  const bool someone_waits = std::any_of(records.begin(), records.end(), [](const auto& entry) {
    return spec::waited_for(entry.second) != nullptr;
  });
  const spec::HangFinding finding = spec::explain_hang(parallelism_of(record), inquiry.report);
  if (!someone_waits || finding.rank < 0 || records.contains(finding.rank)) return;
  // That it is heard of does not say that it hears: the question may be lost on its way.
  const std::string node = node_of(record, finding.rank);
  const bool node_answers = std::any_of(records.begin(), records.end(), [&](const auto& entry) {
    return node_of(record, entry.first) == node;
  });
  if (!node_answers) return;
  inquiry.rank = -1;
  inquiry.idle = clock_.uptime() - inquiry.last_progress;
  conclude(record);
}

void Gangs::watch_stragglers(JobRecord& record, const v1::StepMetrics& step) {
  std::optional<v1::Straggler> change = stragglers_[record.number()].observe(step);
  if (!change) return;
  change->set_node(node_of(record, change->rank()));
  record.mutable_job()->set_reason(spec::describe_straggler(*change));
  v1::Event event;
  *event.mutable_straggler() = *std::move(change);
  jobs_.append(record, std::move(event));
}

}  // namespace tessera::server
