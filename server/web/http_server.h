// /metrics, /healthz and the status pages, over HTTP on the loopback.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "server/telemetry/metrics_page.h"

namespace httplib {
class Server;
}

namespace tessera::server {

// Where the pages get what they show. Called from the server's threads; both may throw, which is
// answered with 503.
struct WebSources {
  std::function<Overview()> overview;
  // nullopt: no such job.
  std::function<std::optional<JobSeries>(const std::string& id)> job;
  std::function<std::vector<prometheus::MetricFamily>()> rpc_metrics;
};

class HttpServer {
 public:
  // Serves on HOST:PORT, HOST the loopback; port 0 picks a free one. INVALID_ARGUMENT, UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<HttpServer>> start(const std::string& address,
                                                           WebSources sources);
  ~HttpServer();

  int port() const { return port_; }

 private:
  explicit HttpServer(WebSources sources);
  void route();

  WebSources sources_;
  std::unique_ptr<httplib::Server> server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace tessera::server
