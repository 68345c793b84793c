#include "server/web/web_gate.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include <httplib.h>

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/web/json.h"
#include "server/web/peer_user.h"

namespace tessera::server {
namespace {

// A proxy says for whom it asks.
constexpr const char* kOfProxies[] = {"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host",
                                      "X-Real-IP"};

}  // namespace

std::optional<Identity> WebGate::user_of(const httplib::Request& request) const {
  const bool is_forwarded =
      std::any_of(std::begin(kOfProxies), std::end(kOfProxies),
                  [&](const char* header) { return request.has_header(header); });
  if (is_forwarded || !hosts_.is_loopback(request.get_header_value("Host"))) return std::nullopt;
  const auto user = peer_user({request.remote_addr, request.remote_port},
                              {request.local_addr, request.local_port});
  if (!user) return std::nullopt;
  if (*user == 0 || *user == ::geteuid()) return Identity{.role = Role::kLocal, .name = "local"};
  if (std::find(viewers_.begin(), viewers_.end(), *user) == viewers_.end()) return std::nullopt;
  return Identity{.role = Role::kViewer, .name = absl::StrCat("user ", *user)};
}

absl::StatusOr<Identity> WebGate::admit(const httplib::Request& request, std::string_view method,
                                        google::protobuf::Message* message) const {
  WebCaller caller{.peer = absl::StrCat("http:", request.remote_addr, ":", request.remote_port),
                   .authorization = request.get_header_value("Authorization"),
                   .user = std::nullopt};
  if (request.get_header_value_count("Authorization") > 1) {
    return error(absl::StatusCode::kUnauthenticated, "TOKEN_INVALID",
                 "the request has several authorization headers");
  }
  if (caller.authorization.empty()) caller.user = user_of(request);
  return gate_.admit(caller, method, message);
}

absl::StatusOr<Identity> WebGate::admit_to_all(const httplib::Request& request,
                                               std::string_view method) const {
  absl::StatusOr<Identity> caller = admit(request, method);
  if (!caller.ok() || !caller->is_limited()) return caller;
  return error(absl::StatusCode::kPermissionDenied, "PROJECT",
               absl::StrCat("this is of all projects, and ", caller->name, " is of some"));
}

void answer_error(httplib::Response& response, const absl::Status& status) {
  response.status = http_code(status.code());
  response.set_content(error_json(status), "application/json");
  if (absl::IsUnauthenticated(status)) {
    response.set_header("WWW-Authenticate", "Basic realm=\"Tessera: a token as password\"");
  }
}

}  // namespace tessera::server
