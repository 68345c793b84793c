#include "worker/agent/supervisor.h"

#include <absl/strings/str_cat.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>

namespace tessera::agent {

using std::chrono::milliseconds;

Supervisor::Supervisor(EventLoop& loop, SupervisorOptions options)
    : loop_(loop),
      options_(std::move(options)),
      context_{loop_,
               oom_,
               options_.trainer,
               options_.environment,
               options_.address,
               options_.confinement,
               options_.ranks_ignore_sigterm},
      prober_(loop_, {.trainer = options_.trainer,
                      .data_program = options_.data_program,
                      .environment = options_.environment,
                      .directory = options_.state_dir / "probes",
                      .confinement = options_.confinement}) {
  recover();
  poll();
  watch_memory();
}

Supervisor::~Supervisor() {
  loop_.cancel(poll_timer_);
  loop_.cancel(memory_timer_);
}

void Supervisor::recover() {
  for (const RunDirectory& directory : RunDirectory::list(options_.state_dir)) {
    const Key run_key = key(directory.id());
    absl::StatusOr<std::unique_ptr<Run>> run =
        Run::recover(context_, directory, [this, run_key] { rank_exited(run_key); });
    if (run.ok()) {
      runs_[run_key] = *std::move(run);
    } else {
      directory.remove();
    }
  }
}

std::vector<v1::RunId> Supervisor::runs() const {
  std::vector<v1::RunId> ids;
  for (const auto& [run_key, run] : runs_) {
    if (!run->released()) ids.push_back(run->id());
  }
  return ids;
}

Run* Supervisor::find(const v1::RunId& id) {
  const auto found = runs_.find(key(id));
  return found == runs_.end() || found->second->released() ? nullptr : found->second.get();
}

void Supervisor::connected(const v1::Welcome& welcome, Time heard, Send send) {
  heard_ = heard;
  fence_ = milliseconds(welcome.fence_ms());
  send_ = std::move(send);
  std::set<Key> wanted;
  for (auto& [run_key, run] : runs_) run->rewind();
  for (const v1::Cursor& cursor : welcome.cursors()) {
    wanted.insert(key(cursor.run()));
    if (Run* run = find(cursor.run())) run->resume(cursor);
  }
  std::vector<Key> unwanted;
  for (auto& [run_key, run] : runs_) {
    if (!wanted.contains(run_key)) unwanted.push_back(run_key);
  }
  for (const Key& run_key : unwanted) {
    spdlog::info("{} attempt {} is no longer wanted", run_key.first, run_key.second);
    runs_[run_key]->release();
    remove_if_over(run_key);
  }
  for (auto& [run_key, run] : runs_) {
    if (run->released()) continue;
    // The answer may have been lost with the last session.
    if (!run->started()) send_prepared(*run);
    run->renew_lease(heard_);
    run->pump(send_);
  }
}

void Supervisor::disconnected() {
  send_ = nullptr;
  prober_.cancel_all();
}

void Supervisor::handle(const v1::SessionResponse& message) {
  switch (message.kind_case()) {
    case v1::SessionResponse::kPrepare:
      return prepare(message.prepare());
    case v1::SessionResponse::kStart:
      return start(message.start());
    case v1::SessionResponse::kKill:
      return kill(message.kill());
    case v1::SessionResponse::kAck:
      if (Run* run = find(message.ack().cursor().run())) {
        run->acknowledge(message.ack().cursor());
        run->pump(send_);
      }
      return;
    case v1::SessionResponse::kRelease:
      if (Run* run = find(message.release().run())) {
        run->release();
        remove_if_over(key(run->id()));
      }
      return;
    case v1::SessionResponse::kRelay:
      if (Run* run = find(message.relay().run())) run->relay(message.relay());
      return;
    case v1::SessionResponse::kProbe:
      return probe(message.probe());
    case v1::SessionResponse::kCancelProbe:
      return prober_.cancel(message.cancel_probe().probe_id());
    case v1::SessionResponse::kWelcome:
    case v1::SessionResponse::kHeartbeatAck:
    case v1::SessionResponse::kLeave:
    case v1::SessionResponse::KIND_NOT_SET:
      spdlog::warn("the coordinator sent a message that this agent does not know");
  }
}

void Supervisor::prepare(const v1::Prepare& prepare) {
  if (Run* run = find(prepare.run())) return send_prepared(*run);
  if (absl::Status status = refusal(prepare); !status.ok()) return refuse(prepare.run(), status);
  const Key run_key = key(prepare.run());
  // A newer attempt means that the coordinator has given up the older ones.
  for (auto& [other_key, run] : runs_) {
    if (other_key.first == run_key.first && other_key.second < run_key.second) {
      run->kill(milliseconds::zero(), "a newer attempt has begun");
    }
  }
  absl::StatusOr<std::unique_ptr<Run>> run =
      Run::prepare(context_, *RunDirectory::of(options_.state_dir, prepare.run()), prepare,
                   [this, run_key] { rank_exited(run_key); });
  if (!run.ok()) return refuse(prepare.run(), run.status());
  send_prepared(**run);
  runs_[run_key] = *std::move(run);
}

absl::Status Supervisor::refusal(const v1::Prepare& prepare) const {
  if (absl::StatusOr<RunDirectory> run = RunDirectory::of(options_.state_dir, prepare.run());
      !run.ok()) {
    return run.status();
  }
  if (ending_) return absl::UnavailableError("the agent is shutting down");
  for (const auto& [run_key, run] : runs_) {
    if (run_key.first == prepare.run().job_id() && run_key.second >= prepare.run().attempt()) {
      return absl::FailedPreconditionError(
          absl::StrCat("attempt ", run_key.second, " of the job is here already"));
    }
  }
  const std::string& kind = prepare.spec().resources().device();
  for (const v1::Placement& placement : prepare.ranks()) {
    const bool present = std::ranges::any_of(options_.devices, [&](const v1::Device& device) {
      return device.index() == placement.device_index() && (kind.empty() || device.kind() == kind);
    });
    if (!present) {
      return absl::NotFoundError(absl::StrCat("this machine has no ", kind, " device ",
                                              placement.device_index(), " for rank ",
                                              placement.rank()));
    }
  }
  return absl::OkStatus();
}

void Supervisor::refuse(const v1::RunId& run, const absl::Status& why) {
  spdlog::warn("refused {} attempt {}: {}", run.job_id(), run.attempt(),
               std::string(why.message()));
  v1::SessionRequest request;
  v1::Prepared& prepared = *request.mutable_prepared();
  *prepared.mutable_run() = run;
  prepared.mutable_refusal()->set_kind(v1::Failure::DEVICE);
  prepared.mutable_refusal()->set_rank(-1);
  prepared.mutable_refusal()->set_message(std::string(why.message()));
  send_(std::move(request));
}

void Supervisor::send_prepared(const Run& run) {
  v1::SessionRequest request;
  *request.mutable_prepared() = run.prepared();
  send_(std::move(request));
}

void Supervisor::start(const v1::Start& start) {
  Run* run = find(start.run());
  if (!run) return send_ended(start.run());
  run->start(start, fence_, heard_);
  run->pump(send_);
}

void Supervisor::kill(const v1::Kill& kill) {
  Run* run = find(kill.run());
  if (!run) return send_ended(kill.run());
  spdlog::info("{} attempt {}: to be killed: {}", kill.run().job_id(), kill.run().attempt(),
               kill.reason());
  run->kill(milliseconds(kill.grace_ms()), kill.reason(), kill.save_checkpoint());
  run->pump(send_);
}

void Supervisor::probe(const v1::Probe& probe) {
  prober_.probe(probe, [this](v1::Probed probed) {
    if (!send_) return;
    v1::SessionRequest request;
    *request.mutable_probed() = std::move(probed);
    send_(std::move(request));
  });
}

void Supervisor::send_ended(const v1::RunId& run) {
  v1::SessionRequest request;
  *request.mutable_run_ended()->mutable_run() = run;
  send_(std::move(request));
}

void Supervisor::rank_exited(const Key& run_key) {
  // Later, because the rank that calls this is gone once its run is removed.
  loop_.post([this, run_key] {
    const auto found = runs_.find(run_key);
    if (found == runs_.end()) return;
    if (send_ && !found->second->released()) found->second->pump(send_);
    remove_if_over(run_key);
    if (all_killed_ && !running()) std::exchange(all_killed_, nullptr)();
  });
}

void Supervisor::remove_if_over(const Key& run_key) {
  const auto found = runs_.find(run_key);
  if (found == runs_.end() || !found->second->released() || found->second->running()) return;
  found->second->directory().remove();
  runs_.erase(found);
}

bool Supervisor::running() const {
  return std::ranges::any_of(runs_, [](const auto& entry) { return entry.second->running(); });
}

void Supervisor::kill_all(milliseconds grace, std::function<void()> done) {
  ending_ = true;
  for (auto& [run_key, run] : runs_) {
    run->kill(grace, "the agent is shutting down", true);
    if (send_ && !run->released()) run->pump(send_);  // it may never have started
  }
  if (!running()) return loop_.post(std::move(done));
  all_killed_ = std::move(done);
}

void Supervisor::await_release(milliseconds patience, std::function<void()> done) {
  if (runs_.empty() || patience <= milliseconds::zero()) return done();
  loop_.call_after(kPollInterval, [this, patience, done = std::move(done)]() mutable {
    await_release(patience - kPollInterval, std::move(done));
  });
}

void Supervisor::poll() {
  for (auto& [run_key, run] : runs_) {
    run->poll();
    if (send_ && !run->released()) run->pump(send_);
  }
  poll_timer_ = loop_.call_after(kPollInterval, [this] { poll(); });
}

void Supervisor::watch_memory() {
  oom_.tick();
  memory_timer_ = loop_.call_after(kOomInterval, [this] { watch_memory(); });
}

void Supervisor::renew_leases(Time heard) {
  heard_ = heard;
  for (auto& [run_key, run] : runs_) {
    if (run->running()) run->renew_lease(heard);
  }
}

}  // namespace tessera::agent
