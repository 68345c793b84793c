#include "server/telemetry/rpc_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>

#include "absl/status/status.h"

namespace tessera::server {
namespace {

const prometheus::Histogram::BucketBoundaries kSeconds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                       0.25,  0.5,    1,     2.5,  10,    60};

}  // namespace

std::string code_name(grpc::StatusCode code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

RpcMetrics::RpcMetrics()
    : requests_(prometheus::BuildCounter()
                    .Name("tessera_rpc_requests_total")
                    .Help("RPCs ended, by method and status code")
                    .Register(registry_)),
      durations_(prometheus::BuildHistogram()
                     .Name("tessera_rpc_duration_seconds")
                     .Help("Wall time of RPCs, streams included")
                     .Register(registry_)) {}

void RpcMetrics::record(const std::string& method, grpc::StatusCode code, absl::Duration duration) {
  requests_.Add({{"method", method}, {"code", code_name(code)}}).Increment();
  durations_.Add({{"method", method}}, kSeconds).Observe(absl::ToDoubleSeconds(duration));
}

}  // namespace tessera::server
