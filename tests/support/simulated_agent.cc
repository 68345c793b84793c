#include "tests/support/simulated_agent.h"

#include <algorithm>
#include <set>

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/spec/addresses.h"
#include "tessera/v1/agent.grpc.pb.h"
#include "tests/support/tesserad_process.h"

namespace tessera::support {
namespace {

// As the real agent's (worker/agent/rank.h).
constexpr size_t kMaxUnacknowledged = 4;
constexpr int64_t kMaxEvents = 256, kMaxBatchBytes = 256 << 10;  // of a batch
constexpr int kMinReconnectMs = 20, kMaxReconnectMs = 100;

google::protobuf::Timestamp now() {
  google::protobuf::Timestamp time;
  const timespec parts = absl::ToTimespec(absl::Now());
  time.set_seconds(parts.tv_sec);
  time.set_nanos(static_cast<int32_t>(parts.tv_nsec));
  return time;
}

void set_step(int32_t step, int64_t num_steps, int log_bytes, v1::TrainerEvent& event) {
  if (log_bytes > 0) {
    event.mutable_log()->set_text(std::string(static_cast<size_t>(log_bytes), 'x'));
    return;
  }
  event.mutable_step()->set_step(step);
  event.mutable_step()->set_total_steps(static_cast<int32_t>(num_steps));
  event.mutable_step()->set_loss(1.0 / step);
}

}  // namespace

// One session. gRPC calls the On...() functions from its threads; all else runs in the loop.
class AgentStream : public grpc::ClientBidiReactor<v1::SessionRequest, v1::SessionResponse> {
 public:
  AgentStream(agent::EventLoop& loop, SimulatedAgent& agent, const std::string& address)
      : loop_(loop), agent_(agent), stub_(v1::AgentService::NewStub(make_channel(address))) {
    stub_->async()->Session(&context_, this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  void send(v1::SessionRequest message) {
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) write_next();
  }
  void cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    loop_.post([this, ok] { read_done(ok); });
  }
  void OnWriteDone(bool ok) override {
    loop_.post([this, ok] {
      outgoing_.pop_front();
      if (ok && !outgoing_.empty()) write_next();
    });
  }
  void OnDone(const grpc::Status&) override {
    loop_.post([this] { agent_.disconnected(); });
  }

 private:
  void read_done(bool ok) {
    if (!ok) {
      over_ = true;
      RemoveHold();
      return;
    }
    const v1::SessionResponse message = std::move(incoming_);
    agent_.received(message);
    StartRead(&incoming_);
  }
  void write_next() {
    if (!over_) StartWrite(&outgoing_.front());
  }

  agent::EventLoop& loop_;
  SimulatedAgent& agent_;
  grpc::ClientContext context_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  v1::SessionResponse incoming_;
  std::deque<v1::SessionRequest> outgoing_;  // the front is being written
  bool over_ = false;
};

SimulatedAgent::SimulatedAgent(agent::EventLoop& loop, const FleetOptions& options,
                               const FleetObserver& observer, int number)
    : loop_(loop),
      options_(options),
      observer_(observer),
      random_(static_cast<unsigned>(number) + 1) {
  hello_.set_node(absl::StrCat("node-", number));
  hello_.set_hostname(hello_.node());
  hello_.set_address("127.0.0.1");
  for (int index = 0; index < options_.devices_per_node; ++index) {
    v1::Device& device = *hello_.add_devices();
    device.set_index(index);
    device.set_kind("cpu");
    device.set_memory_bytes(int64_t{1} << 30);
  }
}

SimulatedAgent::~SimulatedAgent() = default;

void SimulatedAgent::violate(const std::string& what) const {
  if (observer_.violated) observer_.violated(absl::StrCat(hello_.node(), ": ", what));
}

void SimulatedAgent::connect() {
  const std::vector<std::string> all = spec::split_addresses(options_.address);
  stream_ = std::make_unique<AgentStream>(loop_, *this, all[num_tries_++ % all.size()]);
  v1::SessionRequest request;
  *request.mutable_hello() = hello_;
  for (const auto& [key, run] : runs_) *request.mutable_hello()->add_runs() = run.id;
  stream_->send(std::move(request));
}

void SimulatedAgent::disconnected() {
  stream_.reset();
  is_welcome_ = false;
  ++session_;
  if (closed_) return std::exchange(closed_, nullptr)();
  std::uniform_int_distribution<int> pause(kMinReconnectMs, kMaxReconnectMs);
  loop_.call_after(std::chrono::milliseconds(pause(random_)), [this] {
    if (!stream_ && !is_closing_) connect();
  });
}

void SimulatedAgent::close(std::function<void()> done) {
  // Also once it is closed: others may still be closing, and a connection is due again.
  is_closing_ = true;
  closed_ = std::move(done);
  if (stream_) {
    stream_->cancel();
  } else {
    loop_.post(std::exchange(closed_, nullptr));
  }
}

void SimulatedAgent::send(v1::SessionRequest message) {
  if (stream_ && is_welcome_) stream_->send(std::move(message));
}

SimulatedAgent::Run* SimulatedAgent::find(const v1::RunId& id) {
  const auto found = runs_.find({id.job_id(), id.attempt()});
  return found == runs_.end() ? nullptr : &found->second;
}

void SimulatedAgent::received(const v1::SessionResponse& message) {
  if (!is_welcome_ && !message.has_welcome()) return violate("the first message is no Welcome");
  switch (message.kind_case()) {
    case v1::SessionResponse::kWelcome:
      return welcomed(message.welcome());
    case v1::SessionResponse::kPrepare:
      return prepare(message.prepare());
    case v1::SessionResponse::kStart:
      return start(message.start().run());
    case v1::SessionResponse::kKill:
      return kill(message.kill().run());
    case v1::SessionResponse::kAck:
      return acknowledge(message.ack().cursor());
    case v1::SessionResponse::kRelease:
      return release(message.release().run());
    case v1::SessionResponse::kProbe:
      return answer(message.probe());
    default:
      return;
  }
}

void SimulatedAgent::welcomed(const v1::Welcome& welcome) {
  is_welcome_ = true;
  heartbeat_interval_ = std::chrono::milliseconds(welcome.lease_ms() / 3);
  heartbeat(session_);
  std::set<Key> wanted;
  for (const v1::Cursor& cursor : welcome.cursors()) {
    wanted.insert({cursor.run().job_id(), cursor.run().attempt()});
    Run* run = find(cursor.run());
    if (run == nullptr) {
      violate(absl::StrCat("a cursor of ", cursor.run().job_id(), ", which Hello did not name"));
    } else if (cursor.stream() == v1::RANK_STREAM_EVENTS) {
      resume(*run, cursor);
    }
  }
  std::vector<v1::RunId> unwanted;
  for (auto& [key, run] : runs_) {
    run.end_told = false;
    for (Rank& rank : run.ranks) rank.exit_told = false;
    if (!wanted.contains(key)) unwanted.push_back(run.id);
  }
  for (const v1::RunId& id : unwanted) {
    if (find(id)->started && !find(id)->ended) {
      violate(absl::StrCat("job ", id.job_id(), " attempt ", id.attempt(),
                           " runs and is not wanted any more"));
    }
    release(id);
  }
  for (auto& [key, run] : runs_) {
    if (!run.started) send_prepared(run);
    pump(run);
  }
}

void SimulatedAgent::resume(Run& run, const v1::Cursor& cursor) {
  for (Rank& rank : run.ranks) {
    if (rank.number != cursor.rank()) continue;
    if (cursor.offset() < rank.acknowledged || cursor.offset() > rank.sent) {
      violate(absl::StrCat("job ", run.id.job_id(), " rank ", rank.number, " is to go on at event ",
                           cursor.offset(), "; acknowledged were ", rank.acknowledged, ", sent ",
                           rank.sent));
    }
    rank.sent = rank.acknowledged = cursor.offset();
    rank.unacknowledged.clear();
  }
}

void SimulatedAgent::heartbeat(int64_t session) {
  if (session != session_) return;
  v1::SessionRequest request;
  request.mutable_heartbeat()->set_number(++last_heartbeat_);
  send(std::move(request));
  loop_.call_after(heartbeat_interval_, [this, session] { heartbeat(session); });
}

void SimulatedAgent::prepare(const v1::Prepare& prepare) {
  if (const Run* known = find(prepare.run())) return send_prepared(*known);
  Run& run = runs_[{prepare.run().job_id(), prepare.run().attempt()}];
  run.id = prepare.run();
  run.world_size = prepare.world_size();
  run.hosts_rank_zero = prepare.hosts_rank_zero();
  for (const v1::Placement& placement : prepare.ranks()) {
    const bool tells = placement.rank() == 0;
    run.ranks.push_back({.number = placement.rank(),
                         .num_steps = tells ? prepare.spec().training().max_steps() : 0});
  }
  send_prepared(run);
}

void SimulatedAgent::send_prepared(const Run& run) {
  v1::SessionRequest request;
  *request.mutable_prepared()->mutable_run() = run.id;
  if (run.hosts_rank_zero) {
    request.mutable_prepared()->mutable_rendezvous()->set_address(hello_.address());
    request.mutable_prepared()->mutable_rendezvous()->set_port(1);
  }
  send(std::move(request));
}

void SimulatedAgent::send_ended(const v1::RunId& id) {
  v1::SessionRequest request;
  *request.mutable_run_ended()->mutable_run() = id;
  send(std::move(request));
}

void SimulatedAgent::start(const v1::RunId& id) {
  Run* run = find(id);
  if (run == nullptr) return send_ended(id);
  if (run->started || run->ended) return;
  run->started = true;
  run->next_step = Clock::now() + first_interval();
  if (observer_.started) observer_.started(id, hello_.node());
  pump(*run);
}

SimulatedAgent::Clock::duration SimulatedAgent::first_interval() {
  if (!options_.spread_steps) return options_.step_interval;
  std::uniform_real_distribution<double> share;
  return std::chrono::duration_cast<Clock::duration>(share(random_) * options_.step_interval);
}

void SimulatedAgent::kill(const v1::RunId& id) {
  Run* run = find(id);
  if (run == nullptr) return send_ended(id);
  run->stopping = true;
  if (!run->started) run->ended = true;
  advance(*run);
  pump(*run);
}

void SimulatedAgent::acknowledge(const v1::Cursor& cursor) {
  Run* run = find(cursor.run());
  if (run == nullptr) return;
  for (Rank& rank : run->ranks) {
    if (rank.number != cursor.rank()) continue;
    if (rank.unacknowledged.empty() || rank.unacknowledged.front() != cursor.offset()) {
      violate(absl::StrCat("job ", run->id.job_id(), " rank ", rank.number, ": Ack of event ",
                           cursor.offset(), ", which ends no batch that waits for one"));
      continue;
    }
    rank.unacknowledged.pop_front();
    rank.acknowledged = cursor.offset();
  }
  pump(*run);
}

void SimulatedAgent::release(const v1::RunId& id) {
  Run* run = find(id);
  if (run == nullptr) return;
  if (run->started && !run->ended) end(*run);
  runs_.erase({id.job_id(), id.attempt()});
}

void SimulatedAgent::answer(const v1::Probe& probe) {
  v1::SessionRequest request;
  request.mutable_probed()->set_probe_id(probe.probe_id());
  if (probe.has_check()) {
    request.mutable_probed()->mutable_checked();
  } else {
    request.mutable_probed()->set_unanswered("a simulated agent knows no models");
  }
  send(std::move(request));
}

void SimulatedAgent::tick() {
  for (auto& [key, run] : runs_) {
    if (!run.started || run.ended) continue;
    advance(run);
    pump(run);
  }
}

void SimulatedAgent::advance(Run& run) {
  if (!run.started || run.ended) return;
  const Clock::time_point now = Clock::now();
  while (!run.stopping && run.next_step <= now) {
    run.next_step += options_.step_interval;
    for (Rank& rank : run.ranks) {
      rank.is_over = rank.is_over || rank.steps_taken == rank.num_steps;
      if (!rank.is_over) ++rank.steps_taken;
    }
    if (std::ranges::all_of(run.ranks, [](const Rank& rank) { return rank.is_over; })) {
      return end(run);
    }
  }
  if (run.stopping) end(run);
}

void SimulatedAgent::end(Run& run) {
  int num_finished = 0;
  for (Rank& rank : run.ranks) {
    if (!rank.is_over) rank.is_over = rank.is_stopped = true;
    num_finished += !rank.is_stopped;
  }
  run.ended = true;
  if (observer_.ended) observer_.ended(run.id, hello_.node(), num_finished, run.world_size);
}

void SimulatedAgent::pump(Run& run) {
  if (!is_welcome_) return;
  bool all_told = run.ended;
  for (Rank& rank : run.ranks) {
    if (!run.started) break;
    while (rank.sent < rank.end() && rank.unacknowledged.size() < kMaxUnacknowledged) {
      send_batch(run, rank);
    }
    if (rank.is_over && rank.sent == rank.end() && !std::exchange(rank.exit_told, true)) {
      v1::SessionRequest request;
      *request.mutable_rank_exited()->mutable_run() = run.id;
      request.mutable_rank_exited()->set_rank(rank.number);
      send(std::move(request));
    }
    all_told = all_told && rank.exit_told;
  }
  if (all_told && !std::exchange(run.end_told, true)) send_ended(run.id);
}

void SimulatedAgent::send_batch(const Run& run, Rank& rank) {
  v1::SessionRequest request;
  v1::EventBatch& batch = *request.mutable_event_batch();
  *batch.mutable_run() = run.id;
  batch.set_rank(rank.number);
  batch.set_begin_offset(rank.sent);
  const int64_t most = options_.log_bytes > 0 ? kMaxBatchBytes / options_.log_bytes : kMaxEvents;
  batch.set_end_offset(std::min(rank.end(), rank.sent + std::clamp<int64_t>(most, 1, kMaxEvents)));
  for (int64_t offset = batch.begin_offset(); offset < batch.end_offset(); ++offset) {
    v1::TrainerEvent& event = *batch.add_events();
    *event.mutable_time() = now();
    if (offset == 0) {
      event.mutable_started()->set_pid(1);
    } else if (offset <= rank.steps_taken) {
      set_step(static_cast<int32_t>(offset), rank.num_steps, options_.log_bytes, event);
    } else {
      event.mutable_finished()->set_step(static_cast<int32_t>(rank.steps_taken));
      event.mutable_finished()->set_stopped(rank.is_stopped);
    }
  }
  rank.sent = batch.end_offset();
  rank.unacknowledged.push_back(rank.sent);
  send(std::move(request));
}

}  // namespace tessera::support
