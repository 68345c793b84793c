#include "server/listening.h"

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera::server {

absl::Status publish_port(const StateDir& dir, const std::vector<Listener>& listeners) {
  for (const Listener& listener : listeners) {
    if (absl::StartsWith(listener.address, "unix:")) continue;
    return dir.publish("grpc.port", absl::StrCat(listener.port, "\n"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HttpServer>> start_http(
    const HttpOptions& options, const StateDir& dir,
    const std::function<absl::StatusOr<std::unique_ptr<HttpServer>>(HttpOptions)>& start) {
  if (options.address.empty()) return nullptr;
  absl::StatusOr<std::unique_ptr<HttpServer>> http = absl::UnavailableError("");
  std::string last;
  std::ifstream(dir.http_port()) >> last;
  if (absl::EndsWith(options.address, ":0") && !last.empty()) {
    const std::string host = options.address.substr(0, options.address.size() - 2);
    HttpOptions again = options;
    again.address = absl::StrCat(host, ":", last);
    http = start(std::move(again));
  }
  if (!http.ok()) http = start(options);
  if (!http.ok()) return http.status();
  const absl::Status published =
      dir.publish(dir.http_port().filename(), absl::StrCat((*http)->port(), "\n"));
  if (!published.ok()) return published;
  return http;
}

}  // namespace tessera::server
