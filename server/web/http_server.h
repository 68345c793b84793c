// The dashboard, its API, /metrics and /healthz, over HTTP on the loopback. Nothing can be changed
// by it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/telemetry/metrics_page.h"
#include "server/web/api.h"
#include "server/web/host_guard.h"

namespace tessera::server {

struct HttpOptions {
  // HOST:PORT, HOST the loopback; port 0 picks a free one.
  std::string address;
  // Further names that browsers may use for it, as behind a proxy.
  std::vector<std::string> names;
};

// Where /metrics gets what it shows. Called from the server's threads; both may throw, which is
// answered with 503.
struct MetricsSources {
  std::function<Overview()> overview;
  std::function<std::vector<prometheus::MetricFamily>()> rpc_metrics;
};

class HttpServer {
 public:
  // INVALID_ARGUMENT, UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<HttpServer>> start(HttpOptions options, ApiSources api,
                                                           MetricsSources metrics);
  // Ends what is under way.
  ~HttpServer();

  int port() const { return port_; }

 private:
  HttpServer(HttpOptions options, ApiSources api, MetricsSources metrics);
  void configure();
  void route();
  // Whether the request is refused; the response says why then.
  bool refuse(const httplib::Request& request, httplib::Response& response) const;

  EventStreams& streams_;
  HostGuard guard_;
  Api api_;
  MetricsSources metrics_;
  std::unique_ptr<httplib::Server> server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace tessera::server
