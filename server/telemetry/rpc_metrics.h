// Counts and latencies of RPCs, for Prometheus.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/support/status.h>
#include <prometheus/registry.h>

#include "absl/time/time.h"

namespace tessera::server {

// Thread safe.
class RpcMetrics {
 public:
  RpcMetrics();

  // A call of the method has ended.
  void record(const std::string& method, grpc::StatusCode code, absl::Duration duration);

  std::vector<prometheus::MetricFamily> collect() const { return registry_.Collect(); }

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Histogram>& durations_;
};

// gRPC's own name of a code, as in "INVALID_ARGUMENT".
std::string code_name(grpc::StatusCode code);

}  // namespace tessera::server
