// The machines: their sessions, leases and fencing.
//
// Belongs to the control loop's thread. A node has at most one session. Without a message for a
// lease it is LOST, its runs go on; without one for fence + lease its runs have ended themselves
// (see Welcome.fence_ms) and their job is started elsewhere.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/jobs/clock.h"
#include "server/jobs/control_loop.h"
#include "server/scheduler/views.h"
#include "tessera/v1/agent.pb.h"

namespace tessera::server {

// The way to one agent: its stream. Thread safe.
class AgentLink {
 public:
  virtual ~AgentLink() = default;
  // Queues a message. A link that cannot keep up ends itself.
  virtual void send(v1::SessionResponse message) = 0;
  virtual void end(absl::Status status) = 0;
};

struct Node {
  v1::Hello info;
  std::shared_ptr<AgentLink> link;  // nullptr: no session
  absl::Duration last_message;      // on Clock::uptime()
  absl::Time last_seen;
  bool lost = false;
  // Its runs were given up; set until the next session.
  bool given_up = false;
};

// It has a session, keeps its lease, and is there for any job: not the agent of an allocation.
inline bool takes_work(const Node& node) {
  return node.link != nullptr && !node.lost && node.info.allocation().empty();
}

struct LeaseOptions {
  absl::Duration lease = absl::Seconds(10);
  absl::Duration fence = absl::Seconds(300);
};

// Runs a task once all that was written is committed.
using AfterCommit = std::function<void(ControlLoop::Task)>;

class Nodes {
 public:
  Nodes(const Clock& clock, LeaseOptions options, AfterCommit after_commit);

  // A node that held a run when the coordinator started: absent, with a whole fence period to come
  // back.
  void expect(const std::string& name);

  // Takes the session's node, and ends the node's older session. INVALID_ARGUMENT,
  // RESOURCE_EXHAUSTED.
  absl::Status open(const std::shared_ptr<AgentLink>& link, const v1::Hello& hello);
  // Gives the node of the session, "" for one that was superseded.
  std::string close(const std::shared_ptr<AgentLink>& link);

  // A node that will not come back: one without a session. Nothing for others.
  void forget(const std::string& name);

  // The node of a live session, its lease renewed; "" for a session that was superseded or closed.
  std::string heard(const std::shared_ptr<AgentLink>& link);

  // Sends once committed; false where the node has no session.
  bool send(const std::string& name, v1::SessionResponse message);

  struct Expired {
    std::vector<std::string> lost;      // the lease ran out
    std::vector<std::string> given_up;  // the fence period ran out
  };
  // Each node is named once a period of silence. Nodes silent for kForgetAfter more are forgotten.
  Expired expire();

  bool any_ready() const;
  // The node, where it takes work of any job; those of allocations do not.
  std::optional<NodeView> ready(const std::string& name) const;
  // Nodes that may have begun or ceased to take work since the last call.
  std::set<std::string> take_changed() { return std::exchange(changed_, {}); }
  const std::map<std::string, Node>& all() const { return nodes_; }
  const LeaseOptions& options() const { return options_; }

  // Ends every session.
  void end_all(const absl::Status& status);

 private:
  void end(const std::string& name, const absl::Status& status);

  const Clock& clock_;
  LeaseOptions options_;
  AfterCommit after_commit_;
  std::map<std::string, Node> nodes_;
  std::map<AgentLink*, std::string> names_;
  std::set<std::string> changed_;
};

}  // namespace tessera::server
