#include "server/rpc/agent_service.h"

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/rpc/redact_events.h"
#include "server/rpc/status.h"

namespace tessera::server {
namespace {

// Messages of one session that wait for the control loop; more are left to gRPC's flow control.
constexpr int kMaxUnprocessed = 64;
// Messages that wait for the agent to read them.
constexpr size_t kMaxUnsent = 4096;

constexpr char kSessionMethod[] = "tessera.v1.AgentService/Session";

// A session that ends before its first message.
class Refusal final : public grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse> {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class Session final : public grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>,
                      public AgentLink,
                      public OpenCall,
                      public std::enable_shared_from_this<Session> {
 public:
  Session(grpc::CallbackServerContext* context, Identity identity, ControlLoop& loop,
          Control& control, const Gate& gate, const Clock& clock, RpcMetrics& metrics)
      : context_(context),
        identity_(std::move(identity)),
        gate_(gate),
        loop_(loop),
        control_(control),
        clock_(clock),
        metrics_(metrics),
        begin_(clock.uptime()) {}

  // From here on gRPC owns a share, until OnDone.
  void start() {
    self_ = shared_from_this();
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return end(absl::OkStatus());
    const bool first = !std::exchange(greeted_, true);
    if (first && !request_.has_hello()) {
      return end(error(absl::StatusCode::kInvalidArgument, "NO_HELLO",
                       "the first message of a session must be Hello"));
    }
    if (first) {
      const absl::Status status = check_node(request_.hello().node());
      if (!status.ok()) return end(status);
    }
    redact_events(request_);
    loop_.post([session = self_, message = std::move(request_), first] {
      if (first) {
        session->control_.hello(session, message.hello());
      } else {
        session->control_.receive(session, message);
      }
      session->processed();
    });
    request_.Clear();
    std::lock_guard lock(mutex_);
    reading_ = ++num_unprocessed_ < kMaxUnprocessed && !finished_;
    if (reading_) StartRead(&request_);
  }

  void send(v1::SessionResponse message) override {
    std::lock_guard lock(mutex_);
    if (finished_ || ending_) return;
    unsent_.push_back(std::move(message));
    if (unsent_.size() > kMaxUnsent) {
      ending_ = error(absl::StatusCode::kResourceExhausted, "AGENT_TOO_SLOW",
                      absl::StrCat(kMaxUnsent, " messages wait for the agent to read them"));
      context_->TryCancel();
    } else if (unsent_.size() == 1) {
      StartWrite(&unsent_.front());
    }
  }

  // After the write under way, if there is one.
  void end(absl::Status status) override {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    if (!ending_) ending_ = std::move(status);
    if (unsent_.empty()) finish();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    unsent_.pop_front();
    if (!ok || ending_) {
      unsent_.clear();
      if (!ending_) ending_ = absl::OkStatus();
      finish();
    } else if (!unsent_.empty()) {
      StartWrite(&unsent_.front());
    }
  }

  void interrupt(const absl::Status& status) override { end(status); }

  void OnCancel() override { end(absl::CancelledError("the agent is gone")); }

  void OnDone() override {
    metrics_.record("Session", status_.error_code(), clock_.uptime() - begin_);
    loop_.post([session = self_] { session->control_.closed(session); });
    self_.reset();
  }

 private:
  // An agent is the node that its certificate names.
  absl::Status check_node(const std::string& node) const {
    if (identity_.role != Role::kAgent || node == identity_.node) return absl::OkStatus();
    return gate_.audit(
        *context_, identity_, kSessionMethod,
        error(absl::StatusCode::kPermissionDenied, "OTHER_NODE",
              absl::StrCat("the certificate is that of node ", identity_.node, ", not ", node)),
        {{"node", node}});
  }

  // Requires mutex_ held.
  void finish() {
    if (std::exchange(finished_, true)) return;
    status_ = to_grpc(*ending_);
    Finish(status_);
  }

  // The control loop has taken a message.
  void processed() {
    std::lock_guard lock(mutex_);
    --num_unprocessed_;
    if (reading_ || finished_) return;
    reading_ = true;
    StartRead(&request_);
  }

  grpc::CallbackServerContext* const context_;
  const Identity identity_;
  const Gate& gate_;
  ControlLoop& loop_;
  Control& control_;
  const Clock& clock_;
  RpcMetrics& metrics_;
  const absl::Duration begin_;
  std::shared_ptr<Session> self_;
  v1::SessionRequest request_;
  bool greeted_ = false;
  grpc::Status status_;

  std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<v1::SessionResponse> unsent_;  // the first is being written
  std::optional<absl::Status> ending_;
  int num_unprocessed_ = 0;
  bool reading_ = true;
  bool finished_ = false;
};

}  // namespace

AgentService::AgentService(ControlLoop& loop, Control& control, const Gate& gate,
                           const Clock& clock, RpcMetrics& metrics)
    : loop_(loop), control_(control), gate_(gate), clock_(clock), metrics_(metrics) {}

grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>* AgentService::Session(
    grpc::CallbackServerContext* context) {
  auto identity = gate_.admit(*context, kSessionMethod);
  if (!identity.ok()) {
    const grpc::Status status = to_grpc(identity.status());
    metrics_.record("Session", status.error_code(), absl::ZeroDuration());
    return new Refusal(status);
  }
  auto session = std::make_shared<server::Session>(context, *identity, loop_, control_, gate_,
                                                   clock_, metrics_);
  gate_.hold(*identity, session);
  session->start();
  return session.get();
}

}  // namespace tessera::server
