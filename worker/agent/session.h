// The agent's stream to the coordinator: connects, says Hello, keeps the lease, and connects again
// for ever.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tessera/v1/agent.pb.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/supervisor.h"

namespace tessera::agent {

inline constexpr std::chrono::milliseconds kMinBackoff{100};
inline constexpr std::chrono::milliseconds kMaxBackoff{5000};
// A coordinator that answers no HTTP/2 ping for both together is taken as gone: the leases of the
// ranks must not be renewed over a dead network. Together they are no longer than the coordinator's
// lease. It has to allow pings this frequent
// (GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS).
inline constexpr std::chrono::milliseconds kPingInterval{5000};
inline constexpr std::chrono::milliseconds kPingTimeout{5000};

// Heartbeats that wait for their answers; older ones are forgotten.
inline constexpr size_t kMaxUnanswered = 64;

class Connection;

class Session {
 public:
  struct Options {
    // unix:PATH or HOST:PORT: of several one leads, and is found by asking one after the other.
    std::vector<std::string> coordinators;
    // Of each connection to an address: certificates are renewed.
    std::function<absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>>(const std::string&)>
        credentials;
    // Whether a coordinator that does not answer is to be found out: a network that may fail lies
    // between, or another coordinator may take over.
    bool ping = false;
    // All of Hello but the runs.
    v1::Hello hello;
  };
  // Called when going on makes no sense: another agent has this node's name, or the coordinator
  // refuses us. OK: it sends us away, as the job that this agent is for is over.
  using OnFatal = std::function<void(const absl::Status&)>;

  Session(EventLoop& loop, Options options, Supervisor& supervisor, OnFatal on_fatal);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void start() { connect(); }
  // Ends the stream and calls `done`; does not connect again.
  void close(std::function<void()> done);

 private:
  friend class Connection;

  void connect();
  void received(const v1::SessionResponse& message);
  void leave(const std::string& reason);
  void ended(const grpc::Status& status);
  void heartbeat();
  void heartbeat_answered(int64_t number);
  const std::string& coordinator() const { return options_.coordinators[current_]; }
  std::chrono::milliseconds next_backoff();

  EventLoop& loop_;
  const Options options_;
  Supervisor& supervisor_;
  const OnFatal on_fatal_;
  std::unique_ptr<Connection> connection_;
  // Which of the coordinators is asked, and how many were asked in vain since the last pause.
  size_t current_ = 0;
  size_t num_asked_ = 0;
  bool welcomed_ = false;
  bool was_welcomed_ = false;
  // So that an outage is logged once, not at every try.
  bool outage_logged_ = false;
  std::chrono::milliseconds heartbeat_interval_{0};
  EventLoop::TimerId heartbeat_timer_;
  // When Hello was sent, and each heartbeat of the session that was not answered yet.
  Supervisor::Time hello_time_;
  std::map<int64_t, Supervisor::Time> heartbeats_;
  int64_t last_heartbeat_ = 0;
  EventLoop::TimerId connect_timer_;
  std::chrono::milliseconds backoff_ = kMinBackoff;
  std::minstd_rand random_{std::random_device()()};
  std::function<void()> closed_;
};

}  // namespace tessera::agent
