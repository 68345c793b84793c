#include "worker/agent/run.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <google/protobuf/util/time_util.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "proto/spec/threads.h"
#include "worker/agent/network.h"

namespace tessera::agent {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDefaultHangTimeout = std::chrono::minutes(10);

milliseconds hang_timeout(const v1::JobSpec& spec) {
  if (!spec.resources().has_hang_timeout()) return kDefaultHangTimeout;
  return milliseconds(
      google::protobuf::util::TimeUtil::DurationToMilliseconds(spec.resources().hang_timeout()));
}

// Replaces the variable, or adds it.
void set_variable(std::vector<std::string>& environment, absl::string_view name,
                  absl::string_view value) {
  const std::string prefix = absl::StrCat(name, "=");
  std::erase_if(environment, [&](const std::string& entry) { return entry.starts_with(prefix); });
  environment.push_back(absl::StrCat(prefix, value));
}

}  // namespace

Run::Run(const RunContext& context, RunDirectory directory, v1::Prepare prepare, OnExit on_exit)
    : context_(context), directory_(std::move(directory)), prepare_(std::move(prepare)) {
  for (const v1::Placement& placement : prepare_.ranks()) {
    ranks_.push_back(std::make_unique<Rank>(context_.loop, context_.oom, directory_.id(),
                                            placement.rank(), directory_.rank(placement.rank()),
                                            hang_timeout(prepare_.spec()), on_exit));
  }
}

Run::~Run() {
  if (kill_timer_) context_.loop.cancel(*kill_timer_);
}

absl::StatusOr<std::unique_ptr<Run>> Run::prepare(const RunContext& context, RunDirectory directory,
                                                  v1::Prepare prepare, OnExit on_exit) {
  std::unique_ptr<Run> run(
      new Run(context, std::move(directory), std::move(prepare), std::move(on_exit)));
  absl::Status status = make_directories(run->directory_.path());
  for (const v1::Placement& placement : run->prepare_.ranks()) {
    if (status.ok()) status = run->directory_.rank(placement.rank()).create();
  }
  if (status.ok()) status = write_message(run->directory_.prepare(), run->prepare_);
  if (status.ok() && run->prepare_.hosts_rank_zero()) status = run->listen();
  if (!status.ok()) {
    run->directory_.remove();
    return status;
  }
  return run;
}

absl::StatusOr<std::unique_ptr<Run>> Run::recover(const RunContext& context, RunDirectory directory,
                                                  OnExit on_exit) {
  v1::Prepare prepare;
  if (absl::Status status = read_message(directory.prepare(), prepare); !status.ok()) return status;
  v1::Start start;
  if (absl::Status status = read_message(directory.start(), start); !status.ok()) return status;
  std::unique_ptr<Run> run(
      new Run(context, std::move(directory), std::move(prepare), std::move(on_exit)));
  run->started_ = true;
  for (const std::unique_ptr<Rank>& rank : run->ranks_) rank->recover();
  return run;
}

absl::Status Run::listen() {
  absl::StatusOr<Listener> listener = listen_on(context_.address);
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener->fd);
  rendezvous_.set_address(context_.address);
  rendezvous_.set_port(listener->port);
  return absl::OkStatus();
}

bool Run::running() const {
  return std::ranges::any_of(ranks_, [](const auto& rank) { return rank->running(); });
}

v1::Prepared Run::prepared() const {
  v1::Prepared prepared;
  *prepared.mutable_run() = id();
  if (prepare_.hosts_rank_zero()) *prepared.mutable_rendezvous() = rendezvous_;
  return prepared;
}

void Run::start(const v1::Start& start, milliseconds fence, spec::BootClock::time_point lease) {
  if (started_ || killed_) return;
  started_ = true;
  renew_lease(lease);
  // Written before the first spawn: an agent that finds no start.pb knows that there is no process.
  absl::Status status = write_message(directory_.start(), start);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const int local_rank = static_cast<int>(i);
    if (status.ok()) {
      status = ranks_[i]->start(input_for(local_rank, start, fence), options_for(local_rank));
    } else {
      ranks_[i]->recover();  // Finds no process, and says so.
    }
  }
  listener_.reset();
  if (status.ok()) {
    spdlog::info("{} attempt {}: started {} of {} ranks", id().job_id(), id().attempt(),
                 ranks_.size(), prepare_.world_size());
  } else {
    spdlog::error("{} attempt {}: {}", id().job_id(), id().attempt(),
                  std::string(status.message()));
    kill_now("another rank could not be started");
  }
}

v1::TrainerInput Run::input_for(int local_rank, const v1::Start& start, milliseconds fence) const {
  const v1::Placement& placement = prepare_.ranks(local_rank);
  v1::TrainerInput input;
  *input.mutable_spec() = prepare_.spec();
  input.set_job_id(id().job_id());
  input.set_attempt(id().attempt());
  input.set_rank(placement.rank());
  input.set_local_rank(local_rank);
  input.set_local_world_size(prepare_.ranks_size());
  // A GPU rank sees its own device only.
  const bool cuda = prepare_.spec().resources().device() == "cuda";
  input.set_device_index(cuda ? 0 : placement.device_index());
  *input.mutable_rendezvous() = start.rendezvous();
  input.mutable_rendezvous()->set_listen_fd(
      placement.rank() == 0 && listener_.valid() ? listener_.get() : 0);
  input.set_lease_path(directory_.lease().string());
  input.set_fence_ms(fence.count());
  return input;
}

ProcessOptions Run::options_for(int local_rank) const {
  const v1::Placement& placement = prepare_.ranks(local_rank);
  const v1::Resources& resources = prepare_.spec().resources();
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = spec::threads_of_rank(resources, prepare_.ranks_size(), cores);
  ProcessOptions options;
  options.command = {context_.trainer.string()};
  options.environment = context_.environment;
  options.ignores_sigterm = context_.ranks_ignore_sigterm;
  set_variable(options.environment, "OMP_NUM_THREADS", absl::StrCat(threads));
  set_variable(options.environment, "MKL_NUM_THREADS", absl::StrCat(threads));
  // Ranks that share cores must not spin at the end of each parallel region.
  set_variable(options.environment, "OMP_WAIT_POLICY", "passive");
  const bool cuda = resources.device() == "cuda";
  set_variable(options.environment, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");  // NVML's order
  set_variable(options.environment, "CUDA_VISIBLE_DEVICES",
               cuda ? absl::StrCat(placement.device_index()) : "");
  if (placement.rank() == 0 && listener_.valid()) options.inherited_fd = listener_.get();
  if (context_.confinement) options.ruleset_fd = context_.confinement->ruleset();
  return options;
}

void Run::kill(milliseconds grace, const std::string& reason, bool save_checkpoint) {
  killed_ = true;
  const EventLoop::Clock::time_point time = EventLoop::Clock::now() + grace;
  if (kill_timer_ && kill_time_ <= time) return;
  if (kill_timer_) context_.loop.cancel(*kill_timer_);
  kill_timer_.reset();
  if (grace <= milliseconds::zero()) return kill_now(reason);
  v1::TrainerCommand command;
  command.mutable_stop()->set_save_checkpoint(save_checkpoint);
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    if (rank->running()) rank->command(command);
  }
  kill_time_ = time;
  kill_timer_ = context_.loop.call_after(grace, [this, reason] {
    kill_timer_.reset();
    kill_now(reason);
  });
}

void Run::relay(const v1::Relay& relay) {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    const bool is_named = relay.ranks().empty() ||
                          std::ranges::find(relay.ranks(), rank->rank()) != relay.ranks().end();
    if (is_named && rank->running()) rank->command(relay.command());
  }
}

void Run::kill_now(const std::string& reason) {
  v1::Failure cause;
  cause.set_kind(v1::Failure::DEVICE);
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    cause.set_message(absl::StrCat("rank ", rank->rank(), " was killed: ", reason));
    rank->kill(cause);
  }
}

void Run::release() {
  released_ = true;
  kill(milliseconds::zero(), "the coordinator released the run");
}

void Run::poll() {
  for (const std::unique_ptr<Rank>& rank : ranks_) rank->poll();
}

void Run::renew_lease(spec::BootClock::time_point time) {
  if (absl::Status status = directory_.renew_lease(time); !status.ok()) {
    spdlog::warn("{}", std::string(status.message()));
  }
}

void Run::rewind() {
  for (const std::unique_ptr<Rank>& rank : ranks_) rank->rewind();
  end_reported_ = false;
}

Rank* Run::find(int rank) {
  for (const std::unique_ptr<Rank>& candidate : ranks_) {
    if (candidate->rank() == rank) return candidate.get();
  }
  return nullptr;
}

void Run::resume(const v1::Cursor& cursor) {
  Rank* rank = find(cursor.rank());
  if (rank && v1::RankStream_IsValid(cursor.stream())) {
    rank->resume(cursor.stream(), cursor.offset());
  }
}

void Run::acknowledge(const v1::Cursor& cursor) {
  Rank* rank = find(cursor.rank());
  if (rank && v1::RankStream_IsValid(cursor.stream())) {
    rank->acknowledge(cursor.stream(), cursor.offset());
  }
}

void Run::pump(const Send& send) {
  if (started_) {
    bool reported = true;
    for (const std::unique_ptr<Rank>& rank : ranks_) {
      rank->pump(send);
      reported &= rank->reported();
    }
    if (!reported) return;
  } else if (!killed_) {
    return;
  }
  if (end_reported_) return;
  end_reported_ = true;
  v1::SessionRequest request;
  *request.mutable_run_ended()->mutable_run() = id();
  send(std::move(request));
}

}  // namespace tessera::agent
