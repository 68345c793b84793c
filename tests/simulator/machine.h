// A machine: its agent, which speaks the protocol as tessera-agent does
// (worker/agent/supervisor.h), and the files that outlive the agent.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulator/channel.h"
#include "tests/simulator/training.h"

namespace tessera::server::simulator {

class Machine {
 public:
  // Opens a stream to the coordinator, or nullptr where none listens.
  using Dial = std::function<std::shared_ptr<Channel>(Machine&)>;

  Machine(World& world, Training& training, v1::Hello hello, Dial dial);

  const std::string& name() const { return hello_.node(); }
  Wire wire;

  void start_agent();
  // kill -9: ranks go on.
  void crash_agent();
  // Everything dies, and nobody tells the coordinator.
  void power_off();
  bool is_on() const { return on_; }
  void break_session(absl::Duration most);

  // Of the session.
  void get(const v1::SessionResponse& message);
  void closed(const absl::Status& status);

 private:
  using Key = std::pair<std::string, int>;
  struct Run {
    v1::Prepare prepare;
    // start.pb is there.
    bool started = false;
    std::vector<std::shared_ptr<Rank>> ranks;
    // Of the agent's memory.
    struct Memory {
      bool killed = false, released = false, end_reported = false;
      absl::Duration kill_time = absl::InfiniteDuration();
      struct Stream {
        int64_t sent = 0;
        std::deque<std::pair<int64_t, int64_t>> unacked;
        bool reported = false;
      };
      std::map<int, Stream> streams;
    } memory;
  };

  static Key key(const v1::RunId& run) { return {run.job_id(), run.attempt()}; }
  static bool running(const Run& run);
  Run* find(const v1::RunId& run);
  void connect();
  void lost_session();
  void heartbeat(int64_t session);
  void watch_wire(int64_t session);
  void renew_leases(absl::Duration heard);
  void welcome(const v1::Welcome& welcome);
  void prepare(const v1::Prepare& prepare);
  void send_prepared(const Run& run);
  void start(const v1::Start& start);
  void kill(const Key& key, absl::Duration grace, bool save);
  void release(const Key& key);
  void acknowledge(Run& run, const v1::Cursor& cursor);
  void answer(const v1::Probe& probe);
  void pump(Run& run);
  bool pump_rank(Run& run, const Rank& rank);
  void changed(const Key& key);
  void remove_if_over(const Key& key);
  void send(v1::SessionRequest message);

  World& world_;
  Training& training_;
  const v1::Hello hello_;
  const Dial dial_;
  std::map<Key, Run> runs_;
  bool on_ = false;   // the agent's process lives
  int64_t life_ = 0;  // of agents
  int64_t session_ = 0;
  std::shared_ptr<Channel> channel_;
  bool welcomed_ = false;
  absl::Duration heartbeat_, fence_;
  // When the latest message that was answered was sent, and heartbeats that were not.
  absl::Duration heard_;
  std::map<int64_t, absl::Duration> heartbeats_;
  int64_t last_heartbeat_ = 0;
  absl::Duration wire_cut_since_ = absl::InfiniteDuration();
};

}  // namespace tessera::server::simulator
