#include "client/cli/observe.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/event_printer.h"
#include "client/cli/format.h"
#include "client/cpp/wait.h"
#include "proto/spec/elastic.h"
#include "proto/spec/hangs.h"

namespace tessera::cli {
namespace {

constexpr std::chrono::seconds kPatience{60};
// For ranks to answer: one that is stopped never does.
constexpr std::chrono::seconds kAnswerTime{3};
// Ranks that work wait for each other all the time, for moments.
constexpr double kLongWait = 5;

// Watches until `on_event` says true, or `limit` is over. OK then, too.
absl::Status watch_until(Client& client, const WatchOptions& options,
                         std::optional<std::chrono::milliseconds> limit, std::stop_token stop,
                         const std::function<bool(const v1::Event&)>& on_event) {
  std::stop_source over;
  const std::stop_callback interrupted(stop, [&over] { over.request_stop(); });
  std::jthread timer;
  if (limit) {
    timer = std::jthread([&over, limit](const std::stop_token& done) {
      if (wait_for(done, *limit)) over.request_stop();
    });
  }
  const absl::Status status = client.watch(
      options,
      [&](const v1::Event& event) {
        if (on_event(event)) over.request_stop();
      },
      over.get_token());
  return over.stop_requested() && !stop.stop_requested() ? absl::OkStatus() : status;
}

struct Records {
  std::map<int, v1::Event> events;
  v1::Job job;
  size_t num_ranks = 0;

  // Those of one attempt.
  void add(const v1::Event& event) {
    if (!event.has_collectives()) return;
    if (!events.empty() && events.begin()->second.attempt() < event.attempt()) events.clear();
    events[event.collectives().rank()] = event;
  }
};

std::string node_of(const v1::Job& job, int rank) {
  return rank < job.placements_size() ? job.placements(rank).node() : "-";
}

std::string exchange_name(const v1::Collective& collective) {
  return absl::StrCat(collective.kind(), " ", collective.sequence(), " of ", collective.group());
}

void print_summary(const Session& session, const Records& records) {
  std::vector<std::vector<std::string>> rows{
      {">RANK", "NODE", ">STEP", "PHASE", ">EXCHANGES", "WAITS IN", ">FOR"}};
  spec::HangReport report;
  double longest = 0;
  for (size_t rank = 0; rank < records.num_ranks; ++rank) {
    const int number = static_cast<int>(rank);
    const auto found = records.events.find(number);
    if (found == records.events.end()) {
      rows.push_back({absl::StrCat(number), node_of(records.job, number), "-", "does not answer",
                      "-", "-", "-"});
      continue;
    }
    const v1::CollectiveRecord& record = found->second.collectives();
    report.records[number] = record;
    const v1::Collective* awaited = spec::waited_for(record);
    if (awaited != nullptr) longest = std::max(longest, awaited->seconds());
    rows.push_back({absl::StrCat(number), node_of(records.job, number), absl::StrCat(record.step()),
                    record.phase(), absl::StrCat(record.num_issued()),
                    awaited == nullptr ? "-" : exchange_name(*awaited),
                    awaited == nullptr ? "-" : absl::StrFormat("%.3f s", awaited->seconds())});
  }
  print_lines(session.terminal, format_table(std::move(rows)));
  if (longest < kLongWait && report.records.size() == records.num_ranks) return;
  v1::JobSpec job = records.job.spec();
  const int num_ranks = static_cast<int>(records.num_ranks);
  if (num_ranks != job.parallelism().num_processes()) job = spec::with_processes(job, num_ranks);
  const spec::HangFinding finding = spec::explain_hang(job.parallelism(), report);
  if (!finding.text.empty()) print_lines(session.terminal, {finding.text});
}

void print_rank(const Session& session, const v1::CollectiveRecord& record) {
  std::vector<std::vector<std::string>> rows{{"EXCHANGE", ">BYTES", ">SECONDS", "STATE"}};
  for (const v1::Collective& collective : record.collectives()) {
    const char* state = collective.done()            ? "done"
                        : collective.is_waited_for() ? "waited for"
                                                     : "under way";
    rows.push_back({exchange_name(collective), absl::StrCat(collective.bytes()),
                    absl::StrFormat("%.6f", collective.seconds()), state});
  }
  print_lines(session.terminal, format_table(std::move(rows)));
}

ExitCode print_records(const Session& session, const Records& records, std::optional<int> rank) {
  if (rank && !records.events.contains(*rank)) {
    print_errors(session.terminal, {absl::StrCat("rank ", *rank, " of job ", records.job.id(),
                                                 " does not answer, or is none")});
    return kUsage;
  }
  if (session.json) {
    for (const auto& [number, event] : records.events) {
      if (!rank || number == *rank) session.terminal.out << to_json(event) << '\n';
    }
    session.terminal.out.flush();
  } else if (rank) {
    print_rank(session, records.events.at(*rank).collectives());
  } else {
    print_summary(session, records);
  }
  return kSucceeded;
}

// What a job that does not run any more told last.
ExitCode show_stored(const Session& session, Client& client, Records records,
                     std::optional<int> rank, const absl::Status& why) {
  const absl::Status status = client.watch(
      {.id = records.job.id(), .follow = false},
      [&](const v1::Event& event) { records.add(event); }, session.stop);
  if (!status.ok()) return report_call(session, status);
  if (records.events.empty()) return report_call(session, why);
  records.num_ranks = static_cast<size_t>(records.job.spec().parallelism().num_processes());
  return print_records(session, records, rank);
}

}  // namespace

ExitCode trace_job(const Session& session, const TraceCommand& command) {
  auto client = session.connect(kPatience);
  if (!client.ok()) return report_call(session, client.status());
  const auto job = client->get(command.id, session.stop);
  if (!job.ok()) return report_call(session, job.status());
  v1::TraceJobRequest request;
  request.set_id(job->id());
  request.set_num_steps(command.num_steps);
  request.set_first_step(command.first_step);
  *request.mutable_ranks() = {command.ranks.begin(), command.ranks.end()};
  const auto asked = client->trace(request, session.stop);
  if (!asked.ok()) return report_call(session, asked.status());
  if (command.no_wait) return kSucceeded;
  const std::set<int> named(command.ranks.begin(), command.ranks.end());
  const size_t num_ranks =
      named.empty() ? static_cast<size_t>(job->placements_size()) : named.size();
  const size_t expected = num_ranks * static_cast<size_t>(command.num_steps);
  std::set<std::pair<int, int>> seen;
  const absl::Status status = watch_until(
      *client, {.id = job->id(), .start_revision = job->revision() + 1}, std::nullopt, session.stop,
      [&](const v1::Event& event) {
        const v1::TraceSaved& trace = event.trace();
        if (!event.has_trace() || (!named.empty() && !named.contains(trace.rank()))) return false;
        seen.emplace(trace.rank(), trace.step());
        session.terminal.out << (session.json ? to_json(event) : clip(trace.path(), 4096)) << '\n'
                             << std::flush;
        return seen.size() >= expected;
      });
  if (!status.ok()) return report_call(session, status);
  if (seen.size() >= expected) return kSucceeded;
  print_errors(session.terminal, {absl::StrCat("job ", job->id(), " ended, and only ", seen.size(),
                                               " of ", expected, " traces are there")});
  return kJobFailed;
}

ExitCode show_collectives(const Session& session, const std::string& id, std::optional<int> rank) {
  auto client = session.connect(kPatience);
  if (!client.ok()) return report_call(session, client.status());
  const auto job = client->get(id, session.stop);
  if (!job.ok()) return report_call(session, job.status());
  Records records{
      .events = {}, .job = *job, .num_ranks = static_cast<size_t>(job->placements_size())};
  const absl::Status asked = client->record_collectives(job->id(), session.stop);
  if (absl::IsFailedPrecondition(asked)) {
    return show_stored(session, *client, std::move(records), rank, asked);
  }
  if (!asked.ok()) return report_call(session, asked);
  const absl::Status status =
      watch_until(*client, {.id = job->id(), .start_revision = job->revision() + 1}, kAnswerTime,
                  session.stop, [&](const v1::Event& event) {
                    records.add(event);
                    return records.events.size() >= records.num_ranks;
                  });
  if (!status.ok()) return report_call(session, status);
  return print_records(session, records, rank);
}

}  // namespace tessera::cli
