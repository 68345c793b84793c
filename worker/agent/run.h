// One attempt of a job on this machine: prepared, started, ended, and its ranks.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/spec/boot_clock.h"
#include "tessera/v1/agent.pb.h"
#include "worker/agent/confinement.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/file_util.h"
#include "worker/agent/oom_watch.h"
#include "worker/agent/rank.h"
#include "worker/agent/run_directory.h"

namespace tessera::agent {

// What a run needs to know of the agent.
struct RunContext {
  EventLoop& loop;
  const OomWatch& oom;
  std::filesystem::path trainer;
  // Environment of the ranks, as NAME=VALUE.
  std::vector<std::string> environment;
  // Address of this machine that other machines reach.
  std::string address;
  // Null: ranks may read and write what their user may.
  std::shared_ptr<const Confinement> confinement;
  // As ProcessOptions::ignores_sigterm, of ranks.
  bool ranks_ignore_sigterm = false;
};

class Run {
 public:
  // `on_exit` is called when a rank has ended; the run must live on until it returns.
  using OnExit = std::function<void()>;

  // A new run. DEVICE troubles as a status: no space, or no socket to listen on.
  static absl::StatusOr<std::unique_ptr<Run>> prepare(const RunContext& context,
                                                      RunDirectory directory, v1::Prepare prepare,
                                                      OnExit on_exit);
  // A run that an earlier agent had started. An error: it had not, or its files are gone.
  static absl::StatusOr<std::unique_ptr<Run>> recover(const RunContext& context,
                                                      RunDirectory directory, OnExit on_exit);

  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const v1::RunId& id() const { return directory_.id(); }
  const RunDirectory& directory() const { return directory_; }
  // Some rank's process lives.
  bool running() const;
  bool started() const { return started_; }

  v1::Prepared prepared() const;
  // Spawns the ranks, with a lease of that time. Does nothing the second time.
  void start(const v1::Start& start, std::chrono::milliseconds fence,
             spec::BootClock::time_point lease);
  // Asks the ranks to stop, after a checkpoint or not, and kills those left after `grace`. Called
  // again it may bring that nearer, and never puts it off.
  void kill(std::chrono::milliseconds grace, const std::string& reason,
            bool save_checkpoint = false);
  // Hands a command to these ranks, or to all where there are none named.
  void relay(const v1::Relay& relay);
  // Deletes nothing itself: the owner does so once running() is false.
  void release();
  bool released() const { return released_; }

  void poll();
  void renew_lease(spec::BootClock::time_point time);

  // See Rank.
  void rewind();
  void resume(const v1::Cursor& cursor);
  void acknowledge(const v1::Cursor& cursor);
  void pump(const Send& send);

 private:
  Run(const RunContext& context, RunDirectory directory, v1::Prepare prepare, OnExit on_exit);

  absl::Status listen();
  v1::TrainerInput input_for(int local_rank, const v1::Start& start,
                             std::chrono::milliseconds fence) const;
  ProcessOptions options_for(int local_rank) const;
  Rank* find(int rank);
  void kill_now(const std::string& reason);

  const RunContext& context_;
  const RunDirectory directory_;
  const v1::Prepare prepare_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // by local rank
  // Where rank 0 will meet the others; handed to its process at the start.
  UniqueFd listener_;
  v1::Rendezvous rendezvous_;
  bool started_ = false;
  bool killed_ = false;
  bool released_ = false;
  bool end_reported_ = false;
  // Set as long as the timer is.
  std::optional<EventLoop::TimerId> kill_timer_;
  EventLoop::Clock::time_point kill_time_;
};

}  // namespace tessera::agent
