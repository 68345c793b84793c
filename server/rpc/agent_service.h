// The AgentService: one reactor a session, between an agent's stream and the control loop.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/agents/control.h"
#include "server/jobs/control_loop.h"
#include "server/security/gate.h"
#include "server/telemetry/rpc_metrics.h"
#include "tessera/v1/agent.grpc.pb.h"

namespace tessera::server {

class AgentService final : public v1::AgentService::CallbackService {
 public:
  AgentService(ControlLoop& loop, Control& control, const Gate& gate, const Clock& clock,
               RpcMetrics& metrics);

  grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>* Session(
      grpc::CallbackServerContext* context) override;

  // Ends the sessions that came with the credential: it was revoked. Thread safe.
  void end_sessions(const std::string& credential);

 private:
  ControlLoop& loop_;
  Control& control_;
  const Gate& gate_;
  const Clock& clock_;
  RpcMetrics& metrics_;
  std::mutex mutex_;
  // Guarded by mutex_: by credential; those that ended are dropped when the next one comes.
  std::multimap<std::string, std::weak_ptr<AgentLink>> sessions_;
};

}  // namespace tessera::server
