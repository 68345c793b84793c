// Who asks over HTTP, and what for: requests pass the same gate as RPCs.
//
// Whoever runs as the coordinator's user, or as root, could use the Unix socket as well, and is the
// local operator here, too. All others on this machine show a token, and so does what comes through
// a proxy, whose user is not that of who asks.
#pragma once

#include <sys/types.h>

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/security/gate.h"
#include "server/web/host_guard.h"

namespace httplib {
struct Request;
struct Response;
}  // namespace httplib

namespace tessera::server {

class WebGate {
 public:
  // Both outlive this. `viewers`: users of this machine who are viewers of all projects without a
  // token, as Prometheus may be.
  WebGate(const Gate& gate, const HostGuard& hosts, std::vector<uid_t> viewers)
      : gate_(gate), hosts_(hosts), viewers_(std::move(viewers)) {}

  // Who asks, where they may call the method, which `message` is a request of. As Gate::admit.
  absl::StatusOr<Identity> admit(const httplib::Request& request, std::string_view method,
                                 google::protobuf::Message* message = nullptr) const;
  // The same, where the answer is of all projects.
  absl::StatusOr<Identity> admit_to_all(const httplib::Request& request,
                                        std::string_view method) const;

  // Has the stream end with the caller's credential.
  void hold(const Identity& caller, std::weak_ptr<OpenCall> stream) const {
    gate_.hold(caller, std::move(stream));
  }

 private:
  std::optional<Identity> user_of(const httplib::Request& request) const;

  const Gate& gate_;
  const HostGuard& hosts_;
  const std::vector<uid_t> viewers_;
};

// Answers with the status: as JSON, and so that a browser asks its user for a token where one is
// missing.
void answer_error(httplib::Response& response, const absl::Status& status);

}  // namespace tessera::server
