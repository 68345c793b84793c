#include "tests/simulator/machine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera::server::simulator {
namespace {

// As in worker/agent/session.h and rank.h.
constexpr absl::Duration kMinBackoff = absl::Milliseconds(100), kMaxBackoff = absl::Seconds(5);
constexpr absl::Duration kPingTimeout = absl::Seconds(10);
constexpr size_t kMaxUnackedBatches = 4;
// Bytes of an event in its file.
constexpr int64_t kEventBytes = 10;
constexpr int64_t kPeakBytes = 1 << 20;

}  // namespace

Machine::Machine(World& world, Training& training, v1::Hello hello, Dial dial)
    : world_(world), training_(training), hello_(std::move(hello)), dial_(std::move(dial)) {}

bool Machine::running(const Run& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(),
                     [](const auto& rank) { return rank->alive; });
}

Machine::Run* Machine::find(const v1::RunId& run) {
  const auto found = runs_.find(key(run));
  return found == runs_.end() || found->second.memory.released ? nullptr : &found->second;
}

void Machine::start_agent() {
  if (on_) return;
  on_ = true;
  ++life_;
  // What was prepared and not started is deleted; the rest is taken up.
  std::erase_if(runs_, [](const auto& entry) { return !entry.second.started; });
  for (auto& [run_key, run] : runs_) {
    for (const auto& rank : run.ranks) {
      rank->changed = [this, run_key = run_key] { changed(run_key); };
    }
  }
  connect();
}

void Machine::crash_agent() {
  if (!on_) return;
  world_.tell(absl::StrCat("agent of ", name(), " crashes"));
  on_ = false;
  ++life_;
  for (auto& [run_key, run] : runs_) {
    run.memory = {};
    for (const auto& rank : run.ranks) rank->changed = nullptr;
  }
  lost_session();
  if (channel_) channel_->abandon(world_.between(absl::Milliseconds(1), absl::Milliseconds(50)));
  channel_ = nullptr;
}

void Machine::power_off() {
  world_.tell(absl::StrCat(name(), " loses power"));
  const auto channel = std::exchange(channel_, nullptr);
  if (channel) channel->abandon(world_.between(absl::Seconds(1), absl::Minutes(20)));
  crash_agent();
  training_.power_off(name());
}

void Machine::break_session(absl::Duration most) {
  if (channel_) channel_->break_off(most);
}

void Machine::connect() {
  channel_ = wire.whole() ? dial_(*this) : nullptr;
  ++session_;
  if (!channel_) return closed(absl::UnavailableError("no coordinator"));
  v1::SessionRequest message;
  v1::Hello& hello = *message.mutable_hello();
  hello = hello_;
  for (const auto& [run_key, run] : runs_) {
    if (run.memory.released) continue;
    hello.add_runs()->set_job_id(run_key.first);
    hello.mutable_runs()->rbegin()->set_attempt(run_key.second);
  }
  heard_ = world_.now();
  heartbeats_.clear();
  channel_->send_up(std::move(message));
  wire_cut_since_ = absl::InfiniteDuration();
  watch_wire(session_);
}

void Machine::lost_session() {
  welcomed_ = false;
  ++session_;
}

void Machine::closed(const absl::Status&) {
  lost_session();
  channel_ = nullptr;
  if (!on_) return;
  world_.after(world_.between(kMinBackoff, kMaxBackoff), [this, session = session_] {
    if (on_ && session == session_) connect();
  });
}

// Keepalive pings fail while either way is cut.
void Machine::watch_wire(int64_t session) {
  world_.after(absl::Seconds(1), [this, session] {
    if (session != session_) return;
    if (wire.whole()) {
      wire_cut_since_ = absl::InfiniteDuration();
    } else {
      wire_cut_since_ = std::min(wire_cut_since_, world_.now());
    }
    if (world_.now() - wire_cut_since_ < kPingTimeout) return watch_wire(session);
    channel_->abandon(world_.between(absl::Seconds(1), absl::Minutes(20)));
    closed(absl::UnavailableError("ping timeout"));
  });
}

void Machine::heartbeat(int64_t session) {
  if (session != session_) return;
  v1::SessionRequest message;
  message.mutable_heartbeat()->set_number(++last_heartbeat_);
  heartbeats_[last_heartbeat_] = world_.now();
  send(std::move(message));
  world_.after(heartbeat_, [this, session] { heartbeat(session); });
}

void Machine::renew_leases(absl::Duration heard) {
  heard_ = heard;
  for (auto& [run_key, run] : runs_) {
    for (const auto& rank : run.ranks) {
      if (rank->alive) rank->lease = heard;
    }
  }
}

void Machine::send(v1::SessionRequest message) {
  if (channel_) channel_->send_up(std::move(message));
}

void Machine::get(const v1::SessionResponse& message) {
  if (!welcomed_) {
    if (message.has_welcome()) welcome(message.welcome());
    return;
  }
  switch (message.kind_case()) {
    case v1::SessionResponse::kPrepare:
      return prepare(message.prepare());
    case v1::SessionResponse::kStart:
      return start(message.start());
    case v1::SessionResponse::kKill: {
      v1::SessionRequest ended;
      *ended.mutable_run_ended()->mutable_run() = message.kill().run();
      if (find(message.kill().run()) == nullptr) return send(std::move(ended));
      return kill(key(message.kill().run()), absl::Milliseconds(message.kill().grace_ms()),
                  message.kill().save_checkpoint());
    }
    case v1::SessionResponse::kAck:
      if (Run* run = find(message.ack().cursor().run())) acknowledge(*run, message.ack().cursor());
      return;
    case v1::SessionResponse::kRelease:
      if (find(message.release().run()) != nullptr) release(key(message.release().run()));
      return;
    case v1::SessionResponse::kHeartbeatAck: {
      const auto answered = heartbeats_.find(message.heartbeat_ack().number());
      if (answered != heartbeats_.end()) renew_leases(answered->second);
      return;
    }
    case v1::SessionResponse::kProbe:
      return answer(message.probe());
    default:
      return;
  }
}

void Machine::welcome(const v1::Welcome& welcome) {
  welcomed_ = true;
  heartbeat_ = absl::Milliseconds(welcome.lease_ms()) / 3;
  fence_ = absl::Milliseconds(welcome.fence_ms());
  const int64_t session = session_;
  world_.after(heartbeat_, [this, session] { heartbeat(session); });
  std::set<Key> wanted;
  for (auto& [run_key, run] : runs_) {
    run.memory.streams.clear();
    run.memory.end_reported = false;
  }
  for (const v1::Cursor& cursor : welcome.cursors()) {
    wanted.insert(key(cursor.run()));
    Run* run = find(cursor.run());
    if (run != nullptr && cursor.stream() == v1::RANK_STREAM_EVENTS) {
      run->memory.streams[cursor.rank()].sent = cursor.offset();
    }
  }
  std::vector<Key> unwanted;
  for (const auto& [run_key, run] : runs_) {
    if (!wanted.contains(run_key)) unwanted.push_back(run_key);
  }
  for (const Key& run_key : unwanted) release(run_key);
  for (auto& [run_key, run] : runs_) {
    if (run.memory.released) continue;
    if (!run.started) send_prepared(run);
    for (const auto& rank : run.ranks) rank->lease = heard_;
    pump(run);
  }
}

void Machine::prepare(const v1::Prepare& prepare) {
  if (Run* run = find(prepare.run())) return send_prepared(*run);
  for (const auto& [run_key, run] : runs_) {
    if (run_key.first != prepare.run().job_id() || run_key.second < prepare.run().attempt()) {
      continue;
    }
    v1::SessionRequest message;
    *message.mutable_prepared()->mutable_run() = prepare.run();
    message.mutable_prepared()->mutable_refusal()->set_kind(v1::Failure::DEVICE);
    message.mutable_prepared()->mutable_refusal()->set_message("the attempt is here already");
    return send(std::move(message));
  }
  std::vector<Key> older;
  for (const auto& [run_key, run] : runs_) {
    if (run_key.first == prepare.run().job_id()) older.push_back(run_key);
  }
  for (const Key& run_key : older) kill(run_key, absl::ZeroDuration(), false);
  Run& run = runs_[key(prepare.run())];
  run.prepare = prepare;
  send_prepared(run);
}

void Machine::send_prepared(const Run& run) {
  v1::SessionRequest message;
  *message.mutable_prepared()->mutable_run() = run.prepare.run();
  if (run.prepare.hosts_rank_zero()) {
    message.mutable_prepared()->mutable_rendezvous()->set_port(29500);
  }
  send(std::move(message));
}

void Machine::start(const v1::Start& start) {
  Run* run = find(start.run());
  if (run == nullptr) {
    v1::SessionRequest message;
    *message.mutable_run_ended()->mutable_run() = start.run();
    return send(std::move(message));
  }
  if (run->started || run->memory.killed) return;
  run->started = true;
  const Key run_key = key(start.run());
  for (const v1::Placement& placement : run->prepare.ranks()) {
    auto rank = std::make_shared<Rank>();
    rank->run = start.run();
    rank->rank = placement.rank();
    rank->world_size = run->prepare.world_size();
    rank->spot = {name(), placement.device_index()};
    rank->lease = heard_;
    rank->fence = fence_;
    rank->changed = [this, run_key] { changed(run_key); };
    run->ranks.push_back(rank);
    training_.spawn(rank);
  }
  pump(*run);
}

void Machine::kill(const Key& run_key, absl::Duration grace, bool save) {
  Run& run = runs_.at(run_key);
  run.memory.killed = true;
  const absl::Duration time = world_.now() + grace;
  if (run.memory.kill_time <= time) return;
  run.memory.kill_time = time;
  for (const auto& rank : run.ranks) {
    rank->stop = true;
    rank->save |= save;
  }
  world_.after(grace, [this, run_key, time, life = life_] {
    const auto found = runs_.find(run_key);
    if (life != life_ || found == runs_.end() || found->second.memory.kill_time != time) return;
    for (const auto& rank : std::vector(found->second.ranks)) {
      training_.kill(rank, "the agent killed it");
    }
    if (!found->second.memory.released) pump(found->second);
  });
  pump(run);
}

void Machine::release(const Key& run_key) {
  Run& run = runs_.at(run_key);
  run.memory.released = true;
  for (const auto& rank : std::vector(run.ranks)) training_.kill(rank, "the run was released");
  remove_if_over(run_key);
}

void Machine::remove_if_over(const Key& run_key) {
  const auto found = runs_.find(run_key);
  if (found == runs_.end() || !found->second.memory.released || running(found->second)) return;
  runs_.erase(found);
}

void Machine::acknowledge(Run& run, const v1::Cursor& cursor) {
  auto& stream = run.memory.streams[cursor.rank()];
  while (!stream.unacked.empty() && stream.unacked.front().second <= cursor.offset()) {
    stream.unacked.pop_front();
  }
  if (!stream.unacked.empty() && cursor.offset() < stream.unacked.front().first) {
    stream.sent = cursor.offset();
    stream.unacked.clear();
  }
  pump(run);
}

// Later, as the agent hears of it from its event loop.
void Machine::changed(const Key& run_key) {
  world_.after(world_.between(absl::Milliseconds(1), absl::Milliseconds(50)),
               [this, run_key, life = life_] {
                 const auto found = runs_.find(run_key);
                 if (life != life_ || found == runs_.end()) return;
                 if (!found->second.memory.released) pump(found->second);
                 remove_if_over(run_key);
               });
}

void Machine::pump(Run& run) {
  if (!welcomed_) return;
  if (run.started) {
    bool reported = true;
    for (const auto& rank : run.ranks) reported &= pump_rank(run, *rank);
    if (!reported) return;
  } else if (!run.memory.killed) {
    return;
  }
  if (std::exchange(run.memory.end_reported, true)) return;
  v1::SessionRequest message;
  *message.mutable_run_ended()->mutable_run() = run.prepare.run();
  send(std::move(message));
}

// Whether the rank's end has been told.
bool Machine::pump_rank(Run& run, const Rank& rank) {
  auto& stream = run.memory.streams[rank.rank];
  const auto size = static_cast<int64_t>(rank.events.size()) * kEventBytes;
  while (stream.sent < size && stream.unacked.size() < kMaxUnackedBatches) {
    const int64_t count = world_.between(1, (size - stream.sent) / kEventBytes);
    v1::SessionRequest message;
    v1::EventBatch& batch = *message.mutable_event_batch();
    *batch.mutable_run() = rank.run;
    batch.set_rank(rank.rank);
    batch.set_begin_offset(stream.sent);
    for (int64_t i = 0; i < count; ++i) {
      *batch.add_events() = rank.events[static_cast<size_t>(stream.sent / kEventBytes + i)];
    }
    stream.sent += count * kEventBytes;
    batch.set_end_offset(stream.sent);
    stream.unacked.emplace_back(batch.begin_offset(), batch.end_offset());
    send(std::move(message));
  }
  if (rank.alive || stream.sent < size || stream.unacked.size() >= kMaxUnackedBatches) return false;
  if (std::exchange(stream.reported, true)) return true;
  v1::SessionRequest message;
  v1::RankExited& exited = *message.mutable_rank_exited();
  *exited.mutable_run() = rank.run;
  exited.set_rank(rank.rank);
  if (!rank.events.empty() && rank.events.back().has_failed()) {
    *exited.mutable_failure() = rank.events.back().failed();
  } else if (rank.events.empty() || !rank.events.back().has_finished()) {
    *exited.mutable_failure() = rank.exit;
  }
  send(std::move(message));
  return true;
}

void Machine::answer(const v1::Probe& probe) {
  if (world_.chance(0.1)) return;  // it takes too long
  v1::SessionRequest message;
  message.mutable_probed()->set_probe_id(probe.probe_id());
  if (world_.chance(0.1)) {
    message.mutable_probed()->set_unanswered("busy");
  } else {
    v1::Rehearsal& rehearsal = *message.mutable_probed()->mutable_checked()->mutable_rehearsal();
    rehearsal.set_peak_bytes(kPeakBytes);
    rehearsal.set_device("cpu");
  }
  world_.after(world_.between(absl::Milliseconds(5), absl::Seconds(2)),
               [this, message, session = session_] {
                 if (session == session_) send(message);
               });
}

}  // namespace tessera::server::simulator
