// One machine of a Fleet (fleet.h): its runs, and its session with the coordinator.
//
// Belongs to the fleet's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fleet.h"

namespace tessera::support {

class AgentStream;

class SimulatedAgent {
 public:
  SimulatedAgent(agent::EventLoop& loop, const FleetOptions& options, const FleetObserver& observer,
                 int number);
  ~SimulatedAgent();

  void connect();
  // Takes the steps that are due, and sends what can be sent.
  void tick();
  // Ends the session for good; `done` follows.
  void close(std::function<void()> done);

 private:
  friend class AgentStream;
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<std::string, int>;  // job, attempt

  // Offsets count events.
  struct Rank {
    int number = 0;
    int64_t num_steps = 0;
    int64_t steps_taken = 0;
    bool is_over = false;
    bool is_stopped = false;
    int64_t sent = 0;
    int64_t acknowledged = 0;
    std::deque<int64_t> unacknowledged;  // where the batches that were sent end
    bool exit_told = false;

    int64_t end() const { return 1 + steps_taken + (is_over ? 1 : 0); }
  };
  struct Run {
    v1::RunId id;
    int world_size = 0;
    bool hosts_rank_zero = false;
    std::vector<Rank> ranks;
    bool started = false;
    bool stopping = false;
    bool ended = false;
    bool end_told = false;
    Clock::time_point next_step;
  };

  void received(const v1::SessionResponse& message);
  void disconnected();
  void welcomed(const v1::Welcome& welcome);
  void resume(Run& run, const v1::Cursor& cursor);
  void prepare(const v1::Prepare& prepare);
  void start(const v1::RunId& id);
  void kill(const v1::RunId& id);
  void acknowledge(const v1::Cursor& cursor);
  void release(const v1::RunId& id);
  void answer(const v1::Probe& probe);
  void heartbeat(int64_t session);

  Run* find(const v1::RunId& id);
  void send(v1::SessionRequest message);
  void send_prepared(const Run& run);
  void send_ended(const v1::RunId& id);
  void advance(Run& run);
  void pump(Run& run);
  void send_batch(const Run& run, Rank& rank);
  Clock::duration first_interval();
  void end(Run& run);
  void violate(const std::string& what) const;

  agent::EventLoop& loop_;
  const FleetOptions& options_;
  const FleetObserver& observer_;
  v1::Hello hello_;
  std::map<Key, Run> runs_;
  std::unique_ptr<AgentStream> stream_;
  size_t num_tries_ = 0;
  bool is_welcome_ = false;
  int64_t session_ = 0;
  int64_t last_heartbeat_ = 0;
  std::chrono::milliseconds heartbeat_interval_{0};
  std::minstd_rand random_;
  bool is_closing_ = false;
  std::function<void()> closed_;
};

}  // namespace tessera::support
