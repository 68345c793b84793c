#include "server/web/http_server.h"

#include <sys/socket.h>

#include <exception>
#include <utility>

#include <httplib.h>
#include <spdlog/spdlog.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/web/assets.h"
#include "server/web/json.h"

namespace tessera::server {
namespace {

// Beside those that watchers hold.
constexpr size_t kNumThreads = 16;
constexpr size_t kMaxRequestBytes = 64 << 10;
constexpr int kTimeoutSeconds = 5;
// A connection that waits for its next request holds up the end of the server.
constexpr int kKeepAliveSeconds = 1;
// What the system keeps for a peer that does not read; it takes twice as much.
constexpr int kSendBufferBytes = 128 << 10;
// Who may call it may open the pages.
constexpr char kListJobs[] = "tessera.v1.Coordinator/ListJobs";
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

// Everything a page needs comes from here, and none of it stands in the page itself.
const httplib::Headers kHeaders{
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Referrer-Policy", "no-referrer"},
    {"X-Content-Type-Options", "nosniff"}};

void answer_asset(const Asset& asset, httplib::Response& response) {
  response.set_header("Cache-Control",
                      asset.is_immutable ? "public, max-age=31536000, immutable" : "no-cache");
  response.set_content(asset.bytes.data(), asset.bytes.size(), std::string(asset.type).c_str());
}

void answer_ok(const httplib::Request&, httplib::Response& response) {
  response.set_content("ok\n", "text/plain");
}

}  // namespace

HttpServer::Dashboard::Dashboard(ApiSources sources, MetricsSources metrics, const HostGuard& guard,
                                 std::vector<uid_t> viewers)
    : streams(sources.streams),
      gate(sources.gate, guard, std::move(viewers)),
      api(std::move(sources), gate),
      metrics(std::move(metrics)) {}

HttpServer::HttpServer(std::vector<std::string> names)
    : guard_(std::move(names)), server_(std::make_unique<httplib::Server>()) {
  configure();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, ApiSources api,
                                                              MetricsSources metrics) {
  std::unique_ptr<HttpServer> http(new HttpServer(std::move(options.names)));
  http->dashboard_ = std::make_unique<Dashboard>(std::move(api), std::move(metrics), http->guard_,
                                                 std::move(options.viewers));
  http->route();
  if (absl::Status status = http->listen(options.address); !status.ok()) return status;
  return http;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::start_standby(
    HttpOptions options, std::function<absl::Status()> why) {
  std::unique_ptr<HttpServer> http(new HttpServer(std::move(options.names)));
  http->route_standby(std::move(why));
  if (absl::Status status = http->listen(options.address); !status.ok()) return status;
  return http;
}

absl::Status HttpServer::listen(const std::string& address) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 0 || port > 65535 || (host != "127.0.0.1" && host != "localhost" && host != "[::1]")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--http ", address, ": must be 127.0.0.1:PORT, localhost:PORT or [::1]:PORT"));
  }
  const std::string bare = host == "[::1]" ? "::1" : host;
  if (port == 0) {
    port_ = server_->bind_to_any_port(bare);
  } else {
    port_ = server_->bind_to_port(bare, port) ? port : -1;
  }
  if (port_ <= 0) {
    return absl::UnavailableError(absl::StrCat("--http ", address, ": cannot listen there"));
  }
  thread_ = std::thread([server = server_.get()] { server->listen_after_bind(); });
  // stop() has no effect before this; the thread needs no more than its start.
  while (!server_->is_running()) std::this_thread::yield();
  spdlog::info("dashboard on http://{}:{}/", host, port_);
  return absl::OkStatus();
}

HttpServer::~HttpServer() {
  if (dashboard_ != nullptr) dashboard_->streams.stop();
  server_->stop();
  if (thread_.joinable()) thread_.join();
}

void HttpServer::configure() {
  server_->new_task_queue = [] {
    return new httplib::ThreadPool(EventStreams::kMaxStreams + kNumThreads);
  };
  server_->set_payload_max_length(kMaxRequestBytes);
  server_->set_read_timeout(kTimeoutSeconds);
  server_->set_write_timeout(kTimeoutSeconds);
  server_->set_keep_alive_timeout(kKeepAliveSeconds);
  server_->set_tcp_nodelay(true);
  server_->set_socket_options([](auto socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof kSendBufferBytes);
  });
  server_->set_default_headers(kHeaders);
  server_->set_pre_routing_handler(
      [this](const httplib::Request& request, httplib::Response& response) {
        return refuse(request, response) ? httplib::Server::HandlerResponse::Handled
                                         : httplib::Server::HandlerResponse::Unhandled;
      });
  server_->set_exception_handler(
      [](const httplib::Request& request, httplib::Response& response, std::exception_ptr failure) {
        try {
          std::rethrow_exception(failure);
        } catch (const std::exception& cause) {
          spdlog::warn("{}: {}", request.path, cause.what());
        }
        answer_error(response, error(absl::StatusCode::kUnavailable, "NOT_NOW",
                                     "this cannot be read now; try again"));
      });
  server_->set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty()) return;
    const int code = response.status;
    answer_error(response, error(code == 404 ? absl::StatusCode::kNotFound
                                             : absl::StatusCode::kInvalidArgument,
                                 code == 404 ? "NO_SUCH_PATH" : "BAD_REQUEST",
                                 absl::StrCat(request.path, ": there is nothing here")));
    response.status = code;
  });
}

bool HttpServer::refuse(const httplib::Request& request, httplib::Response& response) const {
  const auto deny = [&response](int code, std::string_view reason, std::string_view message) {
    answer_error(response, error(absl::StatusCode::kPermissionDenied, reason, message));
    response.status = code;
    return true;
  };
  const std::string host = request.get_header_value("Host");
  if (!guard_.allows_host(host)) {
    return deny(403, "HOST",
                "this server answers to localhost, and to the names that --http-name gave it");
  }
  if (request.method != "GET" && request.method != "HEAD") {
    return deny(405, "READ_ONLY", "nothing can be changed here; use tessera or the API of gRPC");
  }
  const bool is_page = !absl::StartsWith(request.path, "/api/");
  if (!HostGuard::allows_origin(request.get_header_value("Origin"), host) ||
      (!is_page && !HostGuard::allows_site(request.get_header_value("Sec-Fetch-Site")))) {
    return deny(403, "ORIGIN", "pages of other sites may not ask this server");
  }
  return false;
}

void HttpServer::route_standby(std::function<absl::Status()> why) {
  server_->Get("/healthz", answer_ok);
  server_->Get(".*", [why = std::move(why)](const httplib::Request&, httplib::Response& response) {
    answer_error(response, why());
  });
}

void HttpServer::route() {
  server_->Get("/healthz", answer_ok);
  server_->Get("/readyz", answer_ok);
  server_->Get("/metrics", [this](const httplib::Request& request, httplib::Response& response) {
    const auto caller = dashboard_->gate.admit_to_all(request, kListJobs);
    if (!caller.ok()) return answer_error(response, caller.status());
    const MetricsSources& metrics = dashboard_->metrics;
    response.set_content(render_metrics(metrics.overview(), metrics.rpc_metrics()), kMetricsType);
  });
  dashboard_->api.route(*server_);
  for (const Asset& asset : assets()) {
    const bool is_page = asset.path == "/index.html";
    // The pages are one file, which looks at the address itself.
    const std::string pattern =
        is_page ? "/(?:|nodes|compare|jobs/[^/]+)" : std::string(asset.path);
    server_->Get(pattern,
                 [this, &asset](const httplib::Request& request, httplib::Response& response) {
                   const auto caller = dashboard_->gate.admit(request, kListJobs);
                   if (!caller.ok()) return answer_error(response, caller.status());
                   answer_asset(asset, response);
                 });
  }
}

}  // namespace tessera::server
