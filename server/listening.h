// Where a coordinator is to be found, told in its state directory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/rpc/server.h"
#include "server/state_dir.h"
#include "server/web/http_server.h"

namespace tessera::server {

// Writes STATE_DIR/grpc.port: the port of the first listener that has one.
absl::Status publish_port(const StateDir& dir, const std::vector<Listener>& listeners);

// Starts HTTP by `start`, and writes STATE_DIR/http.port. nullptr: it is off. Where any port will
// do, the last one is taken again if it is free: pages that are open find the server after a
// restart.
absl::StatusOr<std::unique_ptr<HttpServer>> start_http(
    const HttpOptions& options, const StateDir& dir,
    const std::function<absl::StatusOr<std::unique_ptr<HttpServer>>(HttpOptions)>& start);

}  // namespace tessera::server
