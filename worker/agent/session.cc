#include "worker/agent/session.h"

#include <absl/strings/str_cat.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "proto/spec/boot_clock.h"
#include "tessera/v1/agent.grpc.pb.h"
#include "worker/agent/membership.h"

namespace tessera::agent {

using std::chrono::milliseconds;

// One stream. gRPC calls the On...() functions from its threads; all else runs in the loop, to
// which they post. A hold keeps the stream's end from being reported before the loop has seen the
// last read.
class Connection : public grpc::ClientBidiReactor<v1::SessionRequest, v1::SessionResponse> {
 public:
  Connection(EventLoop& loop, Session& session, const std::string& coordinator, bool ping,
             const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : loop_(loop), session_(session) {
    grpc::ChannelArguments arguments;
    if (ping) {
      arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(kPingInterval.count()));
      arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(kPingTimeout.count()));
      arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
      // A machine that is gone does not refuse: this is how long it is waited for.
      arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(kPingTimeout.count()));
    }
    // A channel of its own: no back-off is left over from the last one. Session does the waiting.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto channel = grpc::CreateCustomChannel(coordinator, credentials, arguments);
    stub_ = v1::AgentService::NewStub(channel);
    stub_->async()->Session(&context_, this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  void send(v1::SessionRequest message) {
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) write_next();
  }

  void cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    loop_.post([this, ok] { read_done(ok); });
  }
  void OnWriteDone(bool ok) override {
    loop_.post([this, ok] { write_done(ok); });
  }
  void OnDone(const grpc::Status& status) override {
    loop_.post([this, status] { session_.ended(status); });
  }

 private:
  void read_done(bool ok) {
    if (!ok) {
      over_ = true;
      RemoveHold();
      return;
    }
    const v1::SessionResponse message = std::move(incoming_);
    session_.received(message);
    // One message at a time: the coordinator waits while this agent is busy.
    StartRead(&incoming_);
  }

  void write_done(bool ok) {
    outgoing_.pop_front();
    if (ok && !outgoing_.empty()) write_next();
  }

  void write_next() {
    if (!over_) StartWrite(&outgoing_.front());
  }

  EventLoop& loop_;
  Session& session_;
  grpc::ClientContext context_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  v1::SessionResponse incoming_;
  // The front is being written. Bounded by the supervisor's limit on what is not acknowledged.
  std::deque<v1::SessionRequest> outgoing_;
  bool over_ = false;
};

Session::Session(EventLoop& loop, Options options, Supervisor& supervisor, OnFatal on_fatal)
    : loop_(loop),
      options_(std::move(options)),
      supervisor_(supervisor),
      on_fatal_(std::move(on_fatal)) {}

Session::~Session() = default;

void Session::connect() {
  const auto credentials = options_.credentials(coordinator());
  if (!credentials.ok()) return on_fatal_(credentials.status());
  connection_ =
      std::make_unique<Connection>(loop_, *this, coordinator(), options_.ping, *credentials);
  v1::SessionRequest request;
  *request.mutable_hello() = options_.hello;
  for (v1::RunId& run : supervisor_.runs()) {
    *request.mutable_hello()->add_runs() = std::move(run);
  }
  hello_time_ = spec::BootClock::now();
  connection_->send(std::move(request));
}

void Session::close(std::function<void()> done) {
  closed_ = std::move(done);
  loop_.cancel(connect_timer_);
  if (connection_) {
    connection_->cancel();
  } else {
    loop_.post(std::exchange(closed_, nullptr));
  }
}

void Session::received(const v1::SessionResponse& message) {
  if (message.has_heartbeat_ack()) return heartbeat_answered(message.heartbeat_ack().number());
  if (message.has_leave()) return leave(message.leave().reason());
  if (welcomed_) return supervisor_.handle(message);
  if (!message.has_welcome() || message.welcome().lease_ms() <= 0 ||
      message.welcome().fence_ms() <= 0) {
    spdlog::error("the coordinator's first message is not a welcome with a lease");
    return connection_->cancel();
  }
  const v1::Welcome& welcome = message.welcome();
  spdlog::info("connected to {} as {}, epoch {}", coordinator(), options_.hello.node(),
               welcome.epoch());
  welcomed_ = was_welcomed_ = true;
  outage_logged_ = false;
  backoff_ = kMinBackoff;
  num_asked_ = 0;
  heartbeat_interval_ = std::max(milliseconds(welcome.lease_ms() / 3), milliseconds(1));
  heartbeat_timer_ = loop_.call_after(heartbeat_interval_, [this] { heartbeat(); });
  heartbeats_.clear();
  supervisor_.connected(welcome, hello_time_, [this](v1::SessionRequest request) {
    connection_->send(std::move(request));
  });
}

void Session::leave(const std::string& reason) {
  spdlog::info("the coordinator sends this agent away: {}", reason);
  close([this] { on_fatal_(absl::OkStatus()); });
}

void Session::heartbeat() {
  v1::SessionRequest request;
  request.mutable_heartbeat()->set_number(++last_heartbeat_);
  heartbeats_[last_heartbeat_] = spec::BootClock::now();
  if (heartbeats_.size() > kMaxUnanswered) heartbeats_.erase(heartbeats_.begin());
  connection_->send(std::move(request));
  heartbeat_timer_ = loop_.call_after(heartbeat_interval_, [this] { heartbeat(); });
}

void Session::heartbeat_answered(int64_t number) {
  const auto answered = heartbeats_.find(number);
  if (answered == heartbeats_.end()) return;
  supervisor_.renew_leases(answered->second);
  heartbeats_.erase(heartbeats_.begin(), std::next(answered));
}

void Session::ended(const grpc::Status& status) {
  loop_.cancel(heartbeat_timer_);
  connection_.reset();
  if (std::exchange(welcomed_, false)) supervisor_.disconnected();
  if (closed_) return std::exchange(closed_, nullptr)();
  switch (status.error_code()) {
    case grpc::StatusCode::ABORTED:
      return on_fatal_(absl::AbortedError(absl::StrCat("another agent has taken the node name \"",
                                                       options_.hello.node(),
                                                       "\"; give each agent its own --node")));
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNIMPLEMENTED:
      return on_fatal_(absl::FailedPreconditionError(
          absl::StrCat("the coordinator refuses this agent: ", status.error_message())));
    default:
      break;
  }
  if (!was_welcomed_ && is_certificate_failure(status.error_message())) {
    return on_fatal_(absl::FailedPreconditionError(
        absl::StrCat("the coordinator at ", coordinator(),
                     " shows a certificate that is not of the authority in --ca, or not for this "
                     "name")));
  }
  if (!std::exchange(outage_logged_, true)) {
    spdlog::warn("no coordinator at {}: {}; trying {} until there is one", coordinator(),
                 status.ok() ? "it ended the session" : status.error_message(),
                 options_.coordinators.size() == 1 ? "again" : "all");
  }
  current_ = (current_ + 1) % options_.coordinators.size();
  // All are asked before there is a pause.
  const bool asked_all = ++num_asked_ % options_.coordinators.size() == 0;
  connect_timer_ =
      loop_.call_after(asked_all ? next_backoff() : milliseconds(0), [this] { connect(); });
}

milliseconds Session::next_backoff() {
  // Half to all of it, so that a coordinator's agents do not come back all at once.
  std::uniform_int_distribution<int64_t> jitter(backoff_.count() / 2, backoff_.count());
  backoff_ = std::min(backoff_ * 2, kMaxBackoff);
  return milliseconds(jitter(random_));
}

}  // namespace tessera::agent
