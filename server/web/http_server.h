// The dashboard, its API, /metrics, /healthz and /readyz, over HTTP on the loopback. Nothing can be
// changed by it, and all but the last two is for who may see it (web_gate.h).
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
#include "server/web/web_gate.h"

namespace tessera::server {

struct HttpOptions {
  // HOST:PORT, HOST the loopback; port 0 picks a free one.
  std::string address;
  // Further names that browsers may use for it, as behind a proxy.
  std::vector<std::string> names;
  // Users of this machine who may read everything without a token, beside the coordinator's own.
  std::vector<uid_t> viewers;
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
  // Of a coordinator that does not lead: /healthz alone is well, and all else answers with the
  // error that `why` gives. It is called from the server's threads.
  static absl::StatusOr<std::unique_ptr<HttpServer>> start_standby(
      HttpOptions options, std::function<absl::Status()> why);
  // Ends what is under way.
  ~HttpServer();

  int port() const { return port_; }

 private:
  struct Dashboard {
    Dashboard(ApiSources sources, MetricsSources metrics, const HostGuard& guard,
              std::vector<uid_t> viewers);

    EventStreams& streams;
    WebGate gate;
    Api api;
    MetricsSources metrics;
  };

  explicit HttpServer(std::vector<std::string> names);
  absl::Status listen(const std::string& address);
  void configure();
  void route();
  void route_standby(std::function<absl::Status()> why);
  // Whether the request is refused; the response says why then.
  bool refuse(const httplib::Request& request, httplib::Response& response) const;

  HostGuard guard_;
  // nullptr: a standby has none.
  std::unique_ptr<Dashboard> dashboard_;
  std::unique_ptr<httplib::Server> server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace tessera::server
