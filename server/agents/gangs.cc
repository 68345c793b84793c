#include "server/agents/gangs.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "proto/spec/elastic.h"
#include "server/agents/peaks.h"
#include "server/agents/rank_events.h"
#include "server/jobs/state.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kKillRepeat = absl::Seconds(10);
// Of a job's latest, for an evaluation that may be among them.
constexpr int kMaxLookedAt = 4096;
// Of jobs that were stored before there was the field.
constexpr absl::Duration kDefaultGrace = absl::Seconds(60);

bool all_prepared(const Gang& gang) {
  return std::all_of(gang.nodes().begin(), gang.nodes().end(),
                     [](const GangNode& node) { return node.prepared(); });
}

bool is_ending(v1::Job::State state) {
  return state == v1::Job::RESTARTING || state == v1::Job::STOPPING || state == v1::Job::CANCELLING;
}

absl::Duration duration_of(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

}  // namespace

std::string node_of(const JobRecord& record, int rank) {
  return rank >= 0 && rank < record.job().placements_size() ? record.job().placements(rank).node()
                                                            : "";
}

v1::Failure make_failure(v1::Failure::Kind kind, const std::string& message, int rank) {
  v1::Failure failure;
  failure.set_kind(kind);
  failure.set_message(message);
  failure.set_rank(rank);
  return failure;
}

v1::RunId run_of(const JobRecord& record) {
  v1::RunId run;
  run.set_job_id(record.job().id());
  run.set_attempt(record.job().attempt());
  return run;
}

absl::Duration grace_period(const JobRecord& record) {
  const v1::Resources& resources = record.job().spec().resources();
  return resources.has_grace_period() ? duration_of(resources.grace_period()) : kDefaultGrace;
}

absl::Duration time_limit(const JobRecord& record) {
  const v1::Resources& resources = record.job().spec().resources();
  return resources.has_time_limit() ? duration_of(resources.time_limit())
                                    : absl::InfiniteDuration();
}

Gangs::Gangs(JobTable& jobs, Nodes& nodes, Store& store, const Clock& clock, GangOptions options)
    : jobs_(jobs), nodes_(nodes), store_(store), clock_(clock), options_(options) {
  for (const auto& [number, record] : jobs_.all()) {
    if (!record->has_gang()) continue;
    for (const GangNode& node : record->gang().nodes()) nodes_.expect(node.name());
    active_[number] = record.get();
    const absl::Duration now = clock_.uptime();
    // Records of before there was the field begin anew.
    const absl::Duration held = record->gang().has_begin_time()
                                    ? clock_.wall() - from_proto(record->gang().begin_time())
                                    : absl::ZeroDuration();
    timings_[number] = {.start_deadline = now + nodes_.options().lease + options_.start_timeout,
                        .begin = now - std::max(absl::ZeroDuration(), held),
                        .stop_deadline = now + grace_period(*record)};
  }
}

absl::Duration Gangs::run_time(const JobRecord& record) const {
  const absl::Duration ended = duration_of(record.job().run_time());
  if (!record.has_gang()) return ended;
  return ended + clock_.uptime() - timings_.at(record.number()).begin;
}

absl::Duration Gangs::time_to_end(const JobRecord& record) const {
  const absl::Duration now = clock_.uptime();
  switch (record.job().state()) {
    case v1::Job::STARTING:
    case v1::Job::RUNNING: {
      const absl::Duration left = time_limit(record) - run_time(record);
      return std::max(absl::ZeroDuration(), left) + grace_period(record) + kStopSlack;
    }
    case v1::Job::STOPPING:
      return std::max(absl::ZeroDuration(), timings_.at(record.number()).stop_deadline - now) +
             kStopSlack;
    default:
      return std::max(options_.restart_grace, options_.cancel_grace) + kStopSlack;
  }
}

absl::Duration Gangs::not_before(const JobRecord& record) const {
  const auto found = timings_.find(record.number());
  return found == timings_.end() ? absl::ZeroDuration() : found->second.not_before;
}

Gangs::Member Gangs::find(const std::string& node, const v1::RunId& run) {
  JobRecord* record = jobs_.find(run.job_id());
  if (record == nullptr || !record->has_gang() || record->job().attempt() != run.attempt()) {
    return {};
  }
  for (GangNode& member : *record->mutable_gang()->mutable_nodes()) {
    if (member.name() == node && !member.ended()) return {record, &member};
  }
  return {};
}

void Gangs::launch(JobRecord& record, const std::vector<Spot>& spots) {
  v1::Job& job = *record.mutable_job();
  const int wanted = job.spec().parallelism().num_processes();
  const int count = static_cast<int>(spots.size());
  job.set_attempt(job.attempt() + 1);
  record.clear_stop();
  Gang& gang = *record.mutable_gang();
  gang.Clear();
  *gang.mutable_begin_time() = to_proto(clock_.wall());
  if (count != wanted) *gang.mutable_spec() = spec::with_processes(job.spec(), count);
  std::vector<std::string> names;
  for (int rank = 0; rank < count; ++rank) {
    const Spot& spot = spots[static_cast<size_t>(rank)];
    v1::Placement& placement = *job.add_placements();
    placement.set_rank(rank);
    placement.set_node(spot.node);
    placement.set_device_index(spot.device);
    gang.add_ranks();
    if (std::find(names.begin(), names.end(), spot.node) != names.end()) continue;
    names.push_back(spot.node);
    gang.add_nodes()->set_name(spot.node);
  }
  const std::string of = count == wanted ? "" : absl::StrCat(" of ", wanted);
  jobs_.transition(record, v1::Job::STARTING,
                   absl::StrCat("starts ", count, of, wanted == 1 ? " rank on " : " ranks on ",
                                absl::StrJoin(names, ", ")));
  const absl::Duration now = clock_.uptime();
  timings_[record.number()] = {.start_deadline = now + options_.start_timeout, .begin = now};
  active_[record.number()] = &record;
  for (const std::string& name : names) send_prepare(record, name);
}

void Gangs::send_prepare(const JobRecord& record, const std::string& node) {
  v1::SessionResponse message;
  v1::Prepare& prepare = *message.mutable_prepare();
  *prepare.mutable_run() = run_of(record);
  *prepare.mutable_spec() = record.gang().has_spec() ? record.gang().spec() : record.job().spec();
  prepare.set_world_size(record.job().placements_size());
  for (const v1::Placement& placement : record.job().placements()) {
    if (placement.node() == node) *prepare.add_ranks() = placement;
  }
  prepare.set_hosts_rank_zero(node_of(record, 0) == node);
  nodes_.send(node, std::move(message));
}

void Gangs::send_start(const JobRecord& record, const std::string& node) {
  v1::SessionResponse message;
  *message.mutable_start()->mutable_run() = run_of(record);
  *message.mutable_start()->mutable_rendezvous() = record.gang().rendezvous();
  nodes_.send(node, std::move(message));
}

void Gangs::send_kill(JobRecord& record) {
  Timing& timing = timings_[record.number()];
  const v1::Job::State state = record.job().state();
  const absl::Duration now = clock_.uptime();
  // Ranks that lost a peer write no checkpoint any more, and those that hang never stop.
  const auto& failures = record.gang().failures();
  const bool broken = !failures.empty();
  const bool hangs = std::any_of(failures.begin(), failures.end(), [](const v1::Failure& failure) {
    return failure.kind() == v1::Failure::HANG;
  });
  absl::Duration grace = options_.restart_grace;
  if (state == v1::Job::CANCELLING) grace = options_.cancel_grace;
  if (state == v1::Job::STOPPING && !broken) {
    grace = std::max(absl::ZeroDuration(), timing.stop_deadline - now);
  }
  if (hangs) grace = absl::ZeroDuration();
  for (const GangNode& node : record.gang().nodes()) {
    if (node.ended()) continue;
    v1::SessionResponse message;
    v1::Kill& kill = *message.mutable_kill();
    *kill.mutable_run() = run_of(record);
    kill.set_grace_ms(absl::ToInt64Milliseconds(grace));
    kill.set_reason(record.job().reason());
    kill.set_save_checkpoint(!broken);
    nodes_.send(node.name(), std::move(message));
  }
  timing.next_kill = now + grace + kKillRepeat;
}

void Gangs::prepared(const std::string& node, const v1::Prepared& message) {
  const Member member = find(node, message.run());
  if (!member) return;
  JobRecord& record = *member.record;
  if (message.has_refusal()) {
    member.node->set_ended(true);
    jobs_.touch(record);
    v1::Failure refusal = message.refusal();
    refusal.set_rank(-1);
    refusal.set_message(absl::StrCat("node ", node, " refused the run: ", refusal.message()));
    evict(record);
    fail(record, refusal);
    return;
  }
  if (record.job().state() != v1::Job::STARTING || member.node->prepared()) return;
  Gang& gang = *record.mutable_gang();
  member.node->set_prepared(true);
  if (node_of(record, 0) == node) {
    *gang.mutable_rendezvous() = message.rendezvous();
    // Only the agent of rank 0 knows its socket.
    gang.mutable_rendezvous()->clear_listen_fd();
    if (gang.rendezvous().address().empty()) {
      gang.mutable_rendezvous()->set_address(nodes_.all().at(node).info.address());
    }
  }
  jobs_.touch(record);
  if (!all_prepared(gang)) return;
  gang.set_started(true);
  timings_[record.number()].start_deadline = clock_.uptime() + options_.start_timeout;
  for (const GangNode& other : gang.nodes()) send_start(record, other.name());
}

void Gangs::events(const std::string& node, const v1::EventBatch& batch) {
  const Member member = find(node, batch.run());
  if (!member || node_of(*member.record, batch.rank()) != node) return;
  JobRecord& record = *member.record;
  v1::SessionResponse message;
  v1::Cursor& cursor = *message.mutable_ack()->mutable_cursor();
  *cursor.mutable_run() = batch.run();
  cursor.set_rank(batch.rank());
  cursor.set_stream(batch.stream());
  cursor.set_offset(store_.cursor(record.number(), cursor));
  // A batch that does not go on where the stored ones end was sent before; the answer says where to
  // go on.
  if (batch.begin_offset() == cursor.offset() && batch.end_offset() > batch.begin_offset()) {
    for (const v1::TrainerEvent& event : batch.events()) apply(record, batch.rank(), event);
    cursor.set_offset(batch.end_offset());
    store_.set_cursor(record.number(), cursor);
  }
  nodes_.send(node, std::move(message));
}

void Gangs::apply(JobRecord& record, int rank, const v1::TrainerEvent& event) {
  if (event.has_started()) return rank_started(record, rank, event.started());
  if (event.has_finished()) return rank_finished(record, rank, event.finished());
  note_collectives(record, rank, event);
  std::optional<v1::Event> told = event_of_job(event, rank);
  if (!told) return;
  if (is_known(record, rank, event)) return;
  if (event.has_step()) *record.mutable_job()->mutable_step() = event.step();
  if (event.has_checkpoint()) checkpoint_saved(record, event.checkpoint());
  if (event.has_waiting() && record.job().state() == v1::Job::RUNNING)
    record.mutable_job()->set_reason(event.waiting().reason());
  jobs_.append(record, *std::move(told));
  // Of steps up to there its ranks only repeat what their checkpoint tells of.
  const bool is_repeated = event.step().step() <= record.gang().ranks(rank).resumed_step();
  if (event.has_step() && !is_repeated) watch_stragglers(record, event.step());
  if (event.has_memory()) memory_seen(record, rank, event.memory());
}

// Ranks tell again what the checkpoint that they go on from has of steps and evaluations. That is
// news where the attempt that took them was cut off.
bool Gangs::is_known(const JobRecord& record, int rank, const v1::TrainerEvent& event) {
  const int resumed_step = record.gang().ranks(rank).resumed_step();
  if (event.has_step()) {
    return event.step().step() <= std::min(resumed_step, record.job().step().step());
  }
  if (!event.has_eval() || event.eval().step() > resumed_step) return false;
  const auto [last, is_first] = last_evals_.try_emplace(record.number(), 0);
  if (is_first) {
    for (const v1::Event& told : store_.queries().last_events(record.number(), kMaxLookedAt)) {
      last->second = std::max(last->second, told.eval().step());
    }
  }
  if (event.eval().step() <= last->second) return true;
  last->second = event.eval().step();
  return false;
}

void Gangs::rank_finished(JobRecord& record, int rank, const v1::Finished& finished) {
  GangRank& state = *record.mutable_gang()->mutable_ranks(rank);
  state.set_finished(true);
  state.set_stopped(finished.stopped());
  if (!finished.output().empty()) record.mutable_gang()->set_output(finished.output());
  jobs_.touch(record);
}

void Gangs::rank_started(JobRecord& record, int rank, const v1::Started& started) {
  Gang& gang = *record.mutable_gang();
  gang.mutable_ranks(rank)->set_started(true);
  gang.mutable_ranks(rank)->set_resumed_step(started.resumed_step());
  jobs_.touch(record);
  const bool all = std::all_of(gang.ranks().begin(), gang.ranks().end(),
                               [](const GangRank& state) { return state.started(); });
  if (!all || record.job().state() != v1::Job::STARTING) return;
  const int step = gang.ranks(0).resumed_step();
  jobs_.transition(record, v1::Job::RUNNING,
                   step > 0 ? absl::StrCat("goes on from the checkpoint of step ", step)
                            : "every rank has started");
}

void Gangs::checkpoint_saved(JobRecord& record, const v1::CheckpointSaved& checkpoint) {
  *record.mutable_job()->mutable_checkpoint() = checkpoint;
  if (checkpoint.step() <= record.best_checkpoint_step()) return;
  record.set_best_checkpoint_step(checkpoint.step());
  record.mutable_job()->set_restarts(0);
  record.set_replans(0);
}

void Gangs::memory_seen(JobRecord& record, int rank, const v1::MemorySnapshot& memory) {
  GangRank& state = *record.mutable_gang()->mutable_ranks(rank);
  state.set_memory_step(memory.step());
  state.set_peak_bytes(memory.peak_bytes());
  jobs_.touch(record);
  // The rehearsal is of as many ranks as the job asks for.
  if (!record.job().has_rehearsal() || record.gang().has_spec()) return;
  if (record.job().has_peak() || !saw_first_steps(record)) return;
  v1::Event event;
  *event.mutable_peak() = measured_peak(record, nodes_);
  event.mutable_peak()->set_device_ratio(store_.peak_ratio(event.peak().device()));
  *record.mutable_job()->mutable_peak() = event.peak();
  jobs_.append(record, std::move(event));
}

void Gangs::rank_exited(const std::string& node, const v1::RankExited& message) {
  const Member member = find(node, message.run());
  if (!member || node_of(*member.record, message.rank()) != node || !message.has_failure()) return;
  v1::Failure failure = message.failure();
  failure.set_rank(message.rank());
  // A message that comes again after a reconnect.
  for (const v1::Failure& known : member.record->gang().failures()) {
    if (known.rank() == failure.rank()) return;
  }
  jobs_.log(*member.record, v1::LogLine::ERROR, failure.message(), message.rank());
  const v1::Job::State state = member.record->job().state();
  const bool is_wanted = state == v1::Job::STARTING || state == v1::Job::RUNNING;
  if (is_wanted && message.was_killed() && failure.kind() == v1::Failure::DEVICE) {
    evict(*member.record);
  }
  // What it was killed for is known, and explains more.
  if (message.was_killed() && !member.record->gang().failures().empty()) return;
  fail(*member.record, failure);
}

void Gangs::run_ended(const std::string& node, const v1::RunEnded& message) {
  const Member member = find(node, message.run());
  if (!member) return;
  JobRecord& record = *member.record;
  member.node->set_ended(true);
  jobs_.touch(record);
  if (record.job().state() == v1::Job::STARTING && !record.gang().started()) {
    // No rank of it will tell.
    evict(record);
    return fail(record,
                make_failure(v1::Failure::DEVICE, absl::StrCat("node ", node, " gave the run up")));
  }
  settle(record);
}

std::vector<v1::Cursor> Gangs::cursors(const v1::Hello& hello) {
  std::vector<v1::Cursor> cursors;
  for (const v1::RunId& run : hello.runs()) {
    const Member member = find(hello.node(), run);
    if (!member) continue;
    for (const v1::Placement& placement : member.record->job().placements()) {
      if (placement.node() != hello.node()) continue;
      for (const auto stream : {v1::RANK_STREAM_EVENTS, v1::RANK_STREAM_OUTPUT}) {
        v1::Cursor& cursor = cursors.emplace_back();
        *cursor.mutable_run() = run;
        cursor.set_rank(placement.rank());
        cursor.set_stream(stream);
        cursor.set_offset(store_.cursor(member.record->number(), cursor));
      }
    }
  }
  return cursors;
}

void Gangs::rejoined(const v1::Hello& hello) {
  std::set<std::pair<std::string, int>> held;
  for (const v1::RunId& run : hello.runs()) held.emplace(run.job_id(), run.attempt());
  // What becomes of a job may end its gang.
  for (const auto& [number, pointer] : std::map(active_)) {
    JobRecord& record = *pointer;
    const Member member = find(hello.node(), run_of(record));
    if (!member) continue;
    const bool holds = held.contains({record.job().id(), record.job().attempt()});
    const v1::Job::State state = record.job().state();
    if (!holds && state == v1::Job::STARTING && !member.node->prepared()) {
      send_prepare(record, hello.node());
    } else if (!holds) {
      member.node->set_ended(true);
      jobs_.touch(record);
      fail(record, make_failure(v1::Failure::DEVICE,
                                absl::StrCat("node ", hello.node(), " came back without the run")));
      settle(record);
    } else if (state == v1::Job::STARTING && !member.node->prepared()) {
      send_prepare(record, hello.node());
    } else if (state == v1::Job::STARTING && record.gang().started()) {
      send_start(record, hello.node());
    } else if (is_ending(state)) {
      send_kill(record);
    }
  }
}

void Gangs::give_up(const std::string& node, const std::string& why) {
  for (const auto& [number, record] : std::map(active_)) {
    const Member member = find(node, run_of(*record));
    if (!member) continue;
    member.node->set_ended(true);
    jobs_.touch(*record);
    fail(*record, make_failure(v1::Failure::NETWORK, why));
    settle(*record);
  }
}

void Gangs::cancel(JobRecord& record) {
  const v1::Job::State state = record.job().state();
  if (state == v1::Job::QUEUED || state == v1::Job::SUSPENDED) {
    jobs_.transition(record, v1::Job::CANCELLED,
                     record.job().attempt() == 0 ? "cancelled before it started" : "cancelled");
  } else if (can_transition(state, v1::Job::CANCELLING)) {
    jobs_.transition(record, v1::Job::CANCELLING, "asked to stop; its ranks are being stopped");
    if (record.has_gang()) return send_kill(record);
    // It waited for another plan.
    record.set_needs_plan(false);
    jobs_.transition(record, v1::Job::CANCELLED, "cancelled");
  }
}

void Gangs::tick() {
  const absl::Duration now = clock_.uptime();
  check_inquiries();
  std::erase_if(timings_, [&](const auto& entry) {
    return !active_.contains(entry.first) && entry.second.not_before < now;
  });
  for (const auto& [number, pointer] : std::map(active_)) {
    JobRecord& record = *pointer;
    const v1::Job::State state = record.job().state();
    const Timing timing = timings_[number];
    if (state == v1::Job::STARTING && now > timing.start_deadline) {
      std::vector<std::string> silent;
      for (const GangNode& node : record.gang().nodes()) {
        if (record.gang().started() || !node.prepared()) silent.push_back(node.name());
      }
      fail(record, make_failure(v1::Failure::NETWORK,
                                absl::StrCat(record.gang().started() ? "not every rank started on "
                                                                     : "no answer to Prepare from ",
                                             absl::StrJoin(silent, ", "), " within ",
                                             absl::FormatDuration(options_.start_timeout))));
    } else if (is_ending(state) && now > timing.next_kill) {
      send_kill(record);
    } else if (state == v1::Job::RUNNING) {
      suspect(record);
    }
  }
}

}  // namespace tessera::server
