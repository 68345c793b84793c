// The one place where our errors become gRPC's.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace tessera::server {

// Carries the payloads of `status` as google.rpc details (grpc-status-details-bin). An error
// without one gets an ErrorInfo whose reason is its code. Secrets are taken out of its sentences.
grpc::Status to_grpc(const absl::Status& status);

}  // namespace tessera::server
