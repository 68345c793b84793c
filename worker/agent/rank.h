// One rank of a run on this machine: its process, and what of its events the coordinator has.
//
// A rank's end is reported only after all its events. The last event decides: Finished is success,
// Failed is that failure; a rank that ended without either failed as its exit status, or the reason
// it was killed for, says.
#pragma once

#include <absl/status/status.h>

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tessera/v1/agent.pb.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/oom_watch.h"
#include "worker/agent/process.h"
#include "worker/agent/run_directory.h"
#include "worker/agent/stream_tail.h"

namespace tessera::agent {

// Batches of a stream that the coordinator has not acknowledged yet.
inline constexpr size_t kMaxUnackedBatches = 4;

// A hung rank lives on for the coordinator to find out what it waits for (RankHung): as long as its
// hang timeout, and at most this.
inline constexpr std::chrono::milliseconds kMaxDiagnosisTime{10'000};

// How messages leave for the coordinator.
using Send = std::function<void(v1::SessionRequest)>;

class Rank {
 public:
  // `on_exit` is called when the process has ended; the rank must live on until it returns.
  Rank(EventLoop& loop, const OomWatch& oom, v1::RunId run, int rank, RankDirectory directory,
       std::chrono::milliseconds hang_timeout, std::function<void()> on_exit);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Spawns the process. After an error the rank has ended, with that as its failure.
  absl::Status start(const v1::TrainerInput& input, ProcessOptions options);
  // Takes up the rank of an earlier agent: alive, or ended.
  void recover();

  int rank() const { return rank_; }
  bool running() const { return process_ != nullptr; }

  // Hands the trainer a command, which waits until it is read.
  void command(const v1::TrainerCommand& command);
  // Kills the process group, not for what the rank did; `cause` is the failure if it says nothing
  // itself.
  void kill(const v1::Failure& cause);

  // Looks at the files: notes that the rank hangs, and kills it later. Call it every kPollInterval
  // or so.
  void poll();

  // The coordinator has (again) connected and has the stream's bytes up to `offset`. Streams that
  // are not named start at 0: call rewind() first.
  void rewind();
  void resume(v1::RankStream stream, int64_t offset);
  void acknowledge(v1::RankStream stream, int64_t offset);
  // Sends what there is to send, RankExited last.
  void pump(const Send& send);
  // RankExited has been sent.
  bool reported() const { return reported_; }

 private:
  struct Sent {
    int64_t begin, end;
  };
  struct Stream {
    StreamTail tail;
    std::deque<Sent> unacked;
  };

  Stream& stream(v1::RankStream stream) { return streams_[stream]; }
  absl::Status spawn(const v1::TrainerInput& input, ProcessOptions& options);
  void own(std::unique_ptr<Process> process);
  void exited();
  void end_with(const v1::Failure& failure);
  v1::Failure failure_of(const Exit& exit) const;
  // Sends batches until the stream is empty (true) or has enough of them in flight.
  bool pump_stream(Stream& stream, const Send& send);
  void note_last_event(const v1::EventBatch& batch);
  void kill_for(const v1::Failure& cause);
  // Whether the rank has written an event since the last call that a rank at work writes.
  bool has_progressed();
  void note_hang(EventLoop::Clock::time_point now);
  void report_hang(const Send& send);
  void report(const Send& send);

  EventLoop& loop_;
  const OomWatch& oom_;
  const v1::RunId run_;
  const int rank_;
  const RankDirectory directory_;
  const std::chrono::milliseconds hang_timeout_;
  const std::function<void()> on_exit_;

  std::unique_ptr<Process> process_;
  UniqueFd commands_;
  std::array<Stream, 2> streams_;  // by RankStream
  // The Finished or Failed event, once read.
  std::optional<v1::TrainerEvent> last_event_;
  // Why the rank failed, unless last_event_ says otherwise. Set when the process has ended.
  std::optional<v1::Failure> failure_;
  // Why this agent killed it, or will: it hangs.
  std::optional<v1::Failure> kill_cause_;
  bool was_killed_ = false;
  bool reported_ = false;
  StreamTail progress_;  // of the events, at what was written last
  std::pair<int64_t, int64_t> events_mark_;
  EventLoop::Clock::time_point last_progress_;
  std::optional<EventLoop::Clock::time_point> hang_begin_;
  bool hang_reported_ = false;
};

}  // namespace tessera::agent
