// Machines that a coordinator can place jobs on, without processes: agents that speak AgentService
// over real gRPC sessions as worker/agent does, and whose ranks are counters.
//
// A rank takes training.max_steps steps, one every `step_interval`, and ends; asked to stop it ends
// before. Its event file is a function of the offset (Started, the steps, Finished), so that a node
// holds positions and no events: ten thousand ranks cost little. Steps are told by rank 0.
//
// Agents never die, and lose their sessions only with the coordinator: what ran here is the truth
// that it can be held against. They report what a correct coordinator never does: that it forgot
// events which it had acknowledged, drops a run that it should know, or starts one again.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tessera/v1/agent.pb.h"
#include "worker/agent/event_loop.h"

namespace tessera::support {

struct FleetOptions {
  // Of one coordinator, or of several with commas between, of which one leads.
  std::string address;
  int num_nodes = 1;
  int devices_per_node = 8;
  std::chrono::milliseconds step_interval{20};
  // A run's first step comes at a random time of the interval, and not at its end: steps of runs
  // that were started together are not.
  bool spread_steps = false;
  // Above 0: what is told of a step is a line of so many bytes, in place of its metrics.
  int log_bytes = 0;
};

// Called on the fleet's thread. All may be empty.
struct FleetObserver {
  // The ranks of an attempt on a node were spawned; one call a node.
  std::function<void(const v1::RunId& run, const std::string& node)> started;
  // They are gone. `num_finished` of them took all their steps, of `world_size` on all nodes.
  std::function<void(const v1::RunId& run, const std::string& node, int num_finished,
                     int world_size)>
      ended;
  // One sentence.
  std::function<void(const std::string& violation)> violated;
};

class SimulatedAgent;

class Fleet {
 public:
  // Connects at once, and again whenever a session ends.
  Fleet(FleetOptions options, FleetObserver observer);
  // Ends the sessions.
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

 private:
  void tick();

  const FleetOptions options_;
  const FleetObserver observer_;
  agent::EventLoop loop_;
  std::vector<std::unique_ptr<SimulatedAgent>> agents_;  // the loop's
  std::thread thread_;
};

}  // namespace tessera::support
