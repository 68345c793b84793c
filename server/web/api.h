// The dashboard's API, JSON over HTTP, read-only. docs/dashboard.md lists the paths. Each stands
// for a method of the Coordinator service, and who may not call that is refused here, too.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/jobs/store.h"
#include "server/telemetry/histories.h"
#include "server/web/event_streams.h"
#include "server/web/web_gate.h"
#include "tessera/v1/inspect.pb.h"

namespace httplib {
class Server;
struct Request;
struct Response;
}  // namespace httplib

namespace tessera::server {

struct ApiSources {
  // Outlive the server.
  const Gate& gate;
  Reader& reader;
  Histories& histories;
  EventStreams& streams;
  // Called from the server's threads. May throw, which is answered with 503.
  std::function<std::vector<v1::Node>()> nodes;
  // Waits for the answer.
  std::function<absl::StatusOr<v1::DataProfile>(v1::InspectRequest)> profile;
};

class Api {
 public:
  // `gate` outlives this.
  Api(ApiSources sources, const WebGate& gate) : sources_(std::move(sources)), gate_(gate) {}

  // Adds the handlers; they use this object.
  void route(httplib::Server& server);

 private:
  using Request = httplib::Request;
  using Response = httplib::Response;

  absl::Status jobs(const Request& request, Response& response);
  absl::Status job(const Request& request, Response& response);
  absl::Status history(const Request& request, Response& response);
  absl::Status events(const Request& request, Response& response);
  absl::Status lengths(const Request& request, Response& response);
  absl::Status sparklines(const Request& request, Response& response);
  absl::Status nodes(const Request& request, Response& response);

  struct Found {
    Identity caller;
    JobRecord record;
  };
  // The job that the path names, for who may call the method with its id.
  template <typename Message>
  absl::StatusOr<Found> find(const Request& request, std::string_view method);

  ApiSources sources_;
  const WebGate& gate_;
  // Lengths are being read for somebody.
  std::atomic<bool> profiling_ = false;
};

}  // namespace tessera::server
