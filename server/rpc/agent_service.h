// The AgentService: one reactor a session, between an agent's stream and the control loop.
#pragma once

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

 private:
  ControlLoop& loop_;
  Control& control_;
  const Gate& gate_;
  const Clock& clock_;
  RpcMetrics& metrics_;
};

}  // namespace tessera::server
