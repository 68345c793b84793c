#include "worker/agent/rank.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace tessera::agent {
namespace {

constexpr size_t kMaxPidFileBytes = 1024;

v1::Failure make_failure(v1::Failure::Kind kind, int rank, std::string message) {
  v1::Failure failure;
  failure.set_kind(kind);
  failure.set_rank(rank);
  failure.set_message(std::move(message));
  return failure;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return absl::StrCat("signal ", signal, name ? absl::StrCat(" (SIG", name, ")") : "");
}

// Whether the disk takes no page more.
bool is_full(const std::filesystem::path& path) {
  constexpr uintmax_t kPageBytes = 4096;
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(path, unknown);
  return !unknown && space.available < kPageBytes;
}

bool is_last(const v1::TrainerEvent& event) { return event.has_finished() || event.has_failed(); }

}  // namespace

Rank::Rank(EventLoop& loop, const OomWatch& oom, v1::RunId run, int rank, RankDirectory directory,
           std::chrono::milliseconds hang_timeout, std::function<void()> on_exit)
    : loop_(loop),
      oom_(oom),
      run_(std::move(run)),
      rank_(rank),
      directory_(std::move(directory)),
      hang_timeout_(hang_timeout),
      on_exit_(std::move(on_exit)),
      streams_{Stream{StreamTail(directory_.events(), v1::RANK_STREAM_EVENTS, rank), {}},
               Stream{StreamTail(directory_.output(), v1::RANK_STREAM_OUTPUT, rank), {}}},
      progress_(directory_.events(), v1::RANK_STREAM_EVENTS, rank) {}

Rank::~Rank() {
  if (process_) loop_.unwatch(process_->pidfd());
}

absl::Status Rank::start(const v1::TrainerInput& input, ProcessOptions options) {
  absl::Status status = spawn(input, options);
  if (!status.ok()) {
    end_with(
        make_failure(v1::Failure::DEVICE, rank_,
                     absl::StrCat("rank ", rank_, " could not be started: ", status.message())));
  }
  return status;
}

absl::Status Rank::spawn(const v1::TrainerInput& input, ProcessOptions& options) {
  if (absl::Status status = directory_.create(); !status.ok()) return status;
  if (absl::Status status = write_message(directory_.input(), input); !status.ok()) return status;
  for (const auto& [flag, path] :
       {std::pair("--input", directory_.input()), std::pair("--events", directory_.events()),
        std::pair("--commands", directory_.commands())}) {
    options.command.push_back(flag);
    options.command.push_back(path.string());
  }
  options.directory = directory_.path;
  options.stdout_path = options.stderr_path = directory_.output();
  options.first_out_of_memory = true;
  absl::StatusOr<std::unique_ptr<Process>> process = Process::start(
      options,
      [&](const ProcessId& id) { return write_atomically(directory_.pid(), id.to_string()); });
  if (!process.ok()) return process.status();
  own(*std::move(process));
  return absl::OkStatus();
}

void Rank::own(std::unique_ptr<Process> process) {
  process_ = std::move(process);
  last_progress_ = EventLoop::Clock::now();
  progress_.seek(progress_.size());
  events_mark_ = progress_.mark();
  // Opened for both ways: a command waits in the FIFO until the trainer has opened its end.
  commands_ = UniqueFd(::open(directory_.commands().c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  loop_.watch(process_->pidfd(), [this] { exited(); });
}

void Rank::recover() {
  if (v1::TrainerEvent event; read_message(directory_.last_event(), event).ok()) {
    last_event_ = std::move(event);
  }
  if (v1::Failure failure; read_message(directory_.exit(), failure).ok()) {
    failure_ = std::move(failure);
    return;
  }
  absl::StatusOr<std::string> pid = read_file(directory_.pid(), kMaxPidFileBytes);
  if (!pid.ok()) {
    return end_with(
        make_failure(v1::Failure::DEVICE, rank_,
                     absl::StrCat("rank ", rank_, " was not started: the agent itself had ended")));
  }
  absl::StatusOr<ProcessId> id = ProcessId::parse(*pid);
  absl::StatusOr<std::unique_ptr<Process>> process =
      id.ok() ? Process::adopt(*id) : absl::StatusOr<std::unique_ptr<Process>>(id.status());
  if (process.ok()) {
    spdlog::info("{} attempt {}: took up rank {}, pid {}", run_.job_id(), run_.attempt(), rank_,
                 (*process)->pid());
    own(*std::move(process));
  } else {
    end_with(failure_of(Exit{}));
  }
}

void Rank::command(const v1::TrainerCommand& command) {
  std::ostringstream bytes;
  google::protobuf::util::SerializeDelimitedToOstream(command, &bytes);
  const std::string text = bytes.str();
  // Shorter than PIPE_BUF: written whole or not at all.
  if (::write(commands_.get(), text.data(), text.size()) < 0) {
    spdlog::warn("cannot command rank {}: {}", rank_, strerror(errno));
  }
}

void Rank::kill(const v1::Failure& cause) {
  was_killed_ |= process_ != nullptr && !kill_cause_;
  kill_for(cause);
}

void Rank::kill_for(const v1::Failure& cause) {
  if (!process_) return;
  if (!kill_cause_) {
    kill_cause_ = cause;
    kill_cause_->set_rank(rank_);
  }
  process_->kill_group(SIGKILL);
}

void Rank::exited() {
  const std::optional<Exit> exit = process_->reap();
  if (!exit) return;
  loop_.unwatch(process_->pidfd());
  process_.reset();
  commands_.reset();
  const bool killed_by_us =
      kill_cause_ && (exit->kind == Exit::Kind::kUnknown ||
                      (exit->kind == Exit::Kind::kSignal && exit->value == SIGKILL));
  was_killed_ &= killed_by_us;
  end_with(killed_by_us ? *kill_cause_ : failure_of(*exit));
  on_exit_();
}

void Rank::end_with(const v1::Failure& failure) {
  failure_ = failure;
  // A later agent can then say as much. That it cannot be written is no reason not to go on.
  if (absl::Status status = write_message(directory_.exit(), failure); !status.ok()) {
    spdlog::warn("{}", std::string(status.message()));
  }
}

v1::Failure Rank::failure_of(const Exit& exit) const {
  const std::string who = absl::StrCat("rank ", rank_);
  switch (exit.kind) {
    case Exit::Kind::kSignal:
      if (exit.value == SIGKILL && oom_.recent()) {
        return make_failure(v1::Failure::MEMORY, rank_,
                            who + " was killed by the kernel: the machine is out of memory");
      }
      return make_failure(v1::Failure::DEVICE, rank_,
                          who + " was killed by " + signal_name(exit.value));
    case Exit::Kind::kCode:
      if (is_full(directory_.path)) {
        return make_failure(v1::Failure::DEVICE, rank_,
                            absl::StrCat(who, " exited with status ", exit.value,
                                         " and could not say why: the disk of ",
                                         directory_.path.string(), " is full"));
      }
      return make_failure(
          v1::Failure::BUG, rank_,
          absl::StrCat(who, " exited with status ", exit.value, " and reported no end"));
    case Exit::Kind::kUnknown:
      break;
  }
  return make_failure(v1::Failure::DEVICE, rank_,
                      who + " ended without a word, and the agent was not there to see why");
}

void Rank::poll() {
  if (!process_) return;
  stream(v1::RANK_STREAM_OUTPUT).tail.bound_file();
  const EventLoop::Clock::time_point now = EventLoop::Clock::now();
  if (has_progressed() && !hang_begin_) {
    last_progress_ = now;
  } else if (!hang_begin_ && now - last_progress_ > hang_timeout_) {
    note_hang(now);
  } else if (hang_begin_ && now - *hang_begin_ > std::min(hang_timeout_, kMaxDiagnosisTime)) {
    kill_for(*kill_cause_);
  }
}

// The stream that goes to the coordinator does not tell: reading it stops while that is away. A
// record of collectives is no progress: a rank that hangs writes one when it is asked.
bool Rank::has_progressed() {
  const auto before = std::exchange(events_mark_, progress_.mark());
  if (events_mark_ == before) return false;
  if (events_mark_.first == before.first) return true;  // its events find no room
  bool has_progressed = false;
  while (progress_.offset() < progress_.size()) {
    const absl::StatusOr<v1::EventBatch> batch = progress_.read(/*ended=*/false);
    if (!batch.ok()) {
      progress_.seek(progress_.size());
      return true;
    }
    if (batch->events().empty()) break;
    has_progressed |= std::ranges::any_of(
        batch->events(), [](const v1::TrainerEvent& event) { return !event.has_collectives(); });
  }
  return has_progressed;
}

void Rank::note_hang(EventLoop::Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(hang_timeout_).count();
  hang_begin_ = now;
  kill_cause_ = make_failure(v1::Failure::HANG, rank_,
                             absl::StrCat("rank ", rank_, " reported no progress for ", seconds,
                                          " s (resources.hang_timeout) and was killed"));
  spdlog::warn("{} attempt {}: rank {} hangs", run_.job_id(), run_.attempt(), rank_);
}

void Rank::report_hang(const Send& send) {
  hang_reported_ = true;
  const auto idle = EventLoop::Clock::now() - last_progress_;
  v1::SessionRequest request;
  v1::RankHung& hung = *request.mutable_rank_hung();
  *hung.mutable_run() = run_;
  hung.set_rank(rank_);
  hung.set_idle_ms(std::chrono::duration_cast<std::chrono::milliseconds>(idle).count());
  send(std::move(request));
}

void Rank::rewind() {
  for (Stream& stream : streams_) {
    stream.tail.seek(0);
    stream.unacked.clear();
  }
  reported_ = hang_reported_ = false;
}

void Rank::resume(v1::RankStream which, int64_t offset) { stream(which).tail.seek(offset); }

void Rank::acknowledge(v1::RankStream which, int64_t offset) {
  Stream& stream = this->stream(which);
  std::deque<Sent>& unacked = stream.unacked;
  while (!unacked.empty() && unacked.front().end <= offset) unacked.pop_front();
  if (!unacked.empty() && offset < unacked.front().begin) {
    // The coordinator has less than was sent, and says where to go on.
    stream.tail.seek(offset);
    unacked.clear();
  }
  stream.tail.release(offset);
}

void Rank::pump(const Send& send) {
  bool drained = true;
  for (Stream& stream : streams_) drained &= pump_stream(stream, send);
  if (process_ && hang_begin_ && !hang_reported_) report_hang(send);
  if (drained && failure_ && !reported_) report(send);
}

bool Rank::pump_stream(Stream& stream, const Send& send) {
  // Taken before reading: what is written before the process ends is read before it is reported.
  const bool ended = !process_;
  while (stream.unacked.size() < kMaxUnackedBatches) {
    absl::StatusOr<v1::EventBatch> batch = stream.tail.read(ended);
    if (!batch.ok()) {
      const v1::Failure failure = make_failure(
          v1::Failure::BUG, rank_, absl::StrCat("rank ", rank_, "'s ", batch.status().message()));
      if (process_) {
        kill_for(failure);
      } else {
        failure_ = failure;
      }
      return true;
    }
    if (batch->events().empty()) return true;
    if (stream.tail.stream() == v1::RANK_STREAM_EVENTS) note_last_event(*batch);
    stream.unacked.push_back({batch->begin_offset(), batch->end_offset()});
    v1::SessionRequest request;
    *request.mutable_event_batch() = *std::move(batch);
    *request.mutable_event_batch()->mutable_run() = run_;
    send(std::move(request));
  }
  return false;
}

void Rank::note_last_event(const v1::EventBatch& batch) {
  const v1::TrainerEvent& last = batch.events(batch.events_size() - 1);
  if (!is_last(last)) return;
  last_event_ = last;
  // Before the batch is sent: once it is acknowledged nobody will read these bytes again.
  if (absl::Status status = write_message(directory_.last_event(), last); !status.ok()) {
    spdlog::warn("{}", std::string(status.message()));
  }
}

void Rank::report(const Send& send) {
  v1::SessionRequest request;
  v1::RankExited& exited = *request.mutable_rank_exited();
  *exited.mutable_run() = run_;
  exited.set_rank(rank_);
  if (!last_event_) {
    *exited.mutable_failure() = *failure_;
  } else if (last_event_->has_failed()) {
    *exited.mutable_failure() = last_event_->failed();
    exited.mutable_failure()->set_rank(rank_);
  }
  exited.set_was_killed(was_killed_ && !last_event_);
  reported_ = true;
  send(std::move(request));
}

}  // namespace tessera::agent
