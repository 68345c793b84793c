#include "server/web/http_server.h"

#include <exception>
#include <utility>

#include <httplib.h>
#include <spdlog/spdlog.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/web/pages.h"

namespace tessera::server {
namespace {

constexpr size_t kNumThreads = 4;
constexpr size_t kMaxRequestBytes = 64 << 10;
constexpr int kTimeoutSeconds = 5;
constexpr const char* kHtml = "text/html; charset=utf-8";
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

// A page of another site can make a browser ask for ours under a name of its own; we answer only to
// the names of the loopback.
bool names_loopback(const httplib::Request& request) {
  std::string host = request.get_header_value("Host");
  if (const size_t colon = host.rfind(':'); colon != std::string::npos && host.back() != ']') {
    host.resize(colon);
  }
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

}  // namespace

HttpServer::HttpServer(WebSources sources)
    : sources_(std::move(sources)), server_(std::make_unique<httplib::Server>()) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& address,
                                                              WebSources sources) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 0 || port > 65535 || (host != "127.0.0.1" && host != "localhost" && host != "[::1]")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--http ", address, ": must be 127.0.0.1:PORT, localhost:PORT or [::1]:PORT"));
  }
  const std::string bare = host == "[::1]" ? "::1" : host;
  std::unique_ptr<HttpServer> http(new HttpServer(std::move(sources)));
  http->route();
  if (port == 0) {
    http->port_ = http->server_->bind_to_any_port(bare);
  } else {
    http->port_ = http->server_->bind_to_port(bare, port) ? port : -1;
  }
  if (http->port_ <= 0) {
    return absl::UnavailableError(absl::StrCat("--http ", address, ": cannot listen there"));
  }
  http->thread_ = std::thread([server = http->server_.get()] { server->listen_after_bind(); });
  // stop() has no effect before this; the thread needs no more than its start.
  while (!http->server_->is_running()) std::this_thread::yield();
  spdlog::info("status page on http://{}:{}/", host, http->port_);
  return http;
}

HttpServer::~HttpServer() {
  server_->stop();
  if (thread_.joinable()) thread_.join();
}

void HttpServer::route() {
  server_->new_task_queue = [] { return new httplib::ThreadPool(kNumThreads); };
  server_->set_payload_max_length(kMaxRequestBytes);
  server_->set_read_timeout(kTimeoutSeconds);
  server_->set_write_timeout(kTimeoutSeconds);
  server_->set_pre_routing_handler([](const httplib::Request& request,
                                      httplib::Response& response) {
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'");
    if (names_loopback(request)) return httplib::Server::HandlerResponse::Unhandled;
    response.status = 403;
    response.set_content("this server answers to localhost only\n", "text/plain");
    return httplib::Server::HandlerResponse::Handled;
  });
  server_->set_exception_handler(
      [](const httplib::Request& request, httplib::Response& response, std::exception_ptr failure) {
        try {
          std::rethrow_exception(failure);
        } catch (const std::exception& cause) {
          spdlog::warn("{}: {}", request.path, cause.what());
        }
        response.status = 503;
        response.set_content("not available now\n", "text/plain");
      });
  server_->Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("ok\n", "text/plain");
  });
  server_->Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(render_metrics(sources_.overview(), sources_.rpc_metrics()), kMetricsType);
  });
  server_->Get("/", [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(render_overview(sources_.overview(), absl::Now()), kHtml);
  });
  server_->Get(R"(/jobs/([^/]+))",
               [this](const httplib::Request& request, httplib::Response& response) {
                 const std::optional<JobSeries> series = sources_.job(request.matches[1]);
                 if (!series) {
                   response.status = 404;
                   response.set_content("no such job\n", "text/plain");
                   return;
                 }
                 response.set_content(render_job(*series, absl::Now()), kHtml);
               });
}

}  // namespace tessera::server
