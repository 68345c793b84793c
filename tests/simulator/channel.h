// A session's stream between an agent and the coordinator, as gRPC's over TCP is: messages of one
// direction come in order, or not at all once it has broken.
//
// A stream that breaks loses what was under way and tells each side at a time of its own; the side
// that was told late may still send into nothing, and the coordinator may still read what was sent
// before. In a partition messages wait, and the agent's pings fail.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "server/agents/nodes.h"
#include "tessera/v1/agent.pb.h"
#include "tests/simulator/world.h"

namespace tessera::server::simulator {

// One direction's way, or both, may be cut for a while.
struct Wire {
  bool to_server = true, to_agent = true;
  bool whole() const { return to_server && to_agent; }
};

class Channel final : public AgentLink, public std::enable_shared_from_this<Channel> {
 public:
  // Where the messages arrive. No side is called after it was told of the end.
  struct Ends {
    std::function<void(const std::shared_ptr<Channel>&, const v1::SessionRequest&)> server_gets;
    std::function<void(const std::shared_ptr<Channel>&)> server_closed;
    // The coordinator sends something, or ends the stream.
    std::function<void()> server_speaks;
    std::function<void(const v1::SessionResponse&)> agent_gets;
    std::function<void(const absl::Status&)> agent_closed;
  };

  Channel(World& world, const Wire& wire, Ends ends)
      : world_(world), wire_(wire), ends_(std::move(ends)) {}

  // Of the coordinator.
  void send(v1::SessionResponse message) override;
  void end(absl::Status status) override;
  // Of the agent.
  void send_up(v1::SessionRequest message);

  // Each side learns of it after a while, the coordinator with what came through before.
  void break_off(absl::Duration most);
  // The agent's process is gone, or it gave the stream up: it gets nothing more.
  void abandon(absl::Duration server_learns);
  // The coordinator's process is gone.
  void lose_server();

 private:
  // One direction.
  template <typename Message>
  struct Lane {
    std::deque<std::pair<absl::Duration, Message>> under_way;  // with the time of arrival
    bool pumping = false;
  };

  void pump_up();
  void pump_down();
  template <typename Message>
  void put(Lane<Message>& lane, Message message, void (Channel::*pump)());
  void close_agent(const absl::Status& status);
  void close_server();

  World& world_;
  const Wire& wire_;
  const Ends ends_;
  // Nothing that is sent from now on arrives.
  bool broken_ = false;
  bool agent_open_ = true, server_open_ = true;
  Lane<v1::SessionRequest> up_;
  Lane<v1::SessionResponse> down_;
};

}  // namespace tessera::server::simulator
