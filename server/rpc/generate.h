// Generate: completions of a trained model, made by an agent's machine, streamed as they come.
#pragma once

#include <functional>
#include <memory>

#include <grpcpp/grpcpp.h>

#include "server/agents/control.h"
#include "server/jobs/control_loop.h"
#include "server/jobs/store.h"
#include "server/security/open_calls.h"
#include "server/telemetry/rpc_metrics.h"
#include "tessera/v1/generate.pb.h"

namespace tessera::server {

struct GenerateContext {
  ControlLoop& loop;
  Control& control;
  Reader& reader;
  const Clock& clock;
  RpcMetrics& metrics;
};

// Answers a Generate call. What is made is held until the caller has taken it, 1 MiB at most: a
// caller that is further behind is ended with RESOURCE_EXHAUSTED. `opened` is told of the call.
grpc::ServerWriteReactor<v1::GenerateReply>* start_generation(
    const GenerateContext& context, const v1::GenerateRequest& request,
    const std::function<void(std::weak_ptr<OpenCall>)>& opened);

}  // namespace tessera::server
