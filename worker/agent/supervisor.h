// All runs of this machine: obeys the coordinator's messages and produces the agent's. Knows
// nothing of how they travel: a session (session.h) connects it.
//
// Nothing is lost while no session is connected: ranks go on, their events stay in files, and each
// connection starts again from the cursors that the coordinator names. The trainers' leases are as
// old as the last message of this agent that the coordinator is known to have got.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/spec/boot_clock.h"
#include "tessera/v1/agent.pb.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/oom_watch.h"
#include "worker/agent/prober.h"
#include "worker/agent/rank.h"
#include "worker/agent/run.h"

namespace tessera::agent {

// Longest time between an event's being written and its being sent.
inline constexpr std::chrono::milliseconds kPollInterval{50};
inline constexpr std::chrono::milliseconds kOomInterval{1000};

struct SupervisorOptions {
  // Absolute.
  std::filesystem::path state_dir;
  std::filesystem::path trainer;
  std::filesystem::path data_program;
  // Environment of the trainers, as NAME=VALUE.
  std::vector<std::string> environment;
  std::string address;
  std::vector<v1::Device> devices;
  // Of all that runs for jobs. Null: none.
  std::shared_ptr<const Confinement> confinement;
  // As ProcessOptions::ignores_sigterm, of ranks.
  bool ranks_ignore_sigterm = false;
};

class Supervisor {
 public:
  // Takes up the runs that an earlier agent left in the state directory. Runs that it had prepared
  // and not started are deleted: the socket they would meet at went with it, and the coordinator
  // takes a run that is not named in Hello as failed.
  Supervisor(EventLoop& loop, SupervisorOptions options);
  ~Supervisor();

  // What Hello names.
  std::vector<v1::RunId> runs() const;

  using Time = spec::BootClock::time_point;
  // A session is connected, or no longer. `send` is called from the loop until disconnected().
  // `heard`: when this agent sent the latest message that the coordinator has answered.
  void connected(const v1::Welcome& welcome, Time heard, Send send);
  void renew_leases(Time heard);
  void disconnected();
  // Any message but Welcome.
  void handle(const v1::SessionResponse& message);

  // Ends every rank and then calls `done`; from now on it takes no run. With a `grace` the ranks
  // get that long to write a checkpoint.
  void kill_all(std::chrono::milliseconds grace, std::function<void()> done);
  // Calls `done` once the coordinator has taken note of the end of every run, or after `patience`.
  void await_release(std::chrono::milliseconds patience, std::function<void()> done);

 private:
  // Attempts of a job are neighbours, the oldest first.
  using Key = std::pair<std::string, int>;

  static Key key(const v1::RunId& id) { return {id.job_id(), id.attempt()}; }
  Run* find(const v1::RunId& id);
  // Some rank's process lives.
  bool running() const;
  void recover();
  void prepare(const v1::Prepare& prepare);
  // Why this machine cannot take the run; OK when it can.
  absl::Status refusal(const v1::Prepare& prepare) const;
  void refuse(const v1::RunId& run, const absl::Status& why);
  void send_prepared(const Run& run);
  void start(const v1::Start& start);
  void kill(const v1::Kill& kill);
  void probe(const v1::Probe& probe);
  void rank_exited(const Key& run);
  void remove_if_over(const Key& run);
  void send_ended(const v1::RunId& run);

  void poll();
  void watch_memory();

  EventLoop& loop_;
  const SupervisorOptions options_;
  OomWatch oom_;
  RunContext context_;
  Prober prober_;
  std::map<Key, std::unique_ptr<Run>> runs_;
  Send send_;  // null while no session is connected
  std::chrono::milliseconds fence_{0};
  Time heard_;
  bool ending_ = false;
  std::function<void()> all_killed_;
  EventLoop::TimerId poll_timer_;
  EventLoop::TimerId memory_timer_;
};

}  // namespace tessera::agent
