#include "server/rpc/server.h"

#include <sys/un.h>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <spdlog/spdlog.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera::server {
namespace {

constexpr int kMaxMessageBytes = 4 << 20;
// Dead connections are found in about twice this.
constexpr int kKeepaliveMs = 20'000;

absl::Status check_address(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) {
    constexpr size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;
    const size_t length = absl::StripPrefix(address, "unix:").size();
    if (length > 0 && length <= kMaxPath) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--listen ", address,
                                                   ": the path of a socket has 1 to ", kMaxPath,
                                                   " characters, this one has ", length));
  }
  if (is_loopback(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--listen ", address,
      ": without TLS only unix:PATH, 127.0.0.1:PORT, localhost:PORT and [::1]:PORT are served"));
}

}  // namespace

bool is_loopback(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) return false;
  const std::string host = address.substr(0, colon);
  return host == "127.0.0.1" || host == "localhost" || host == "[::1]";
}

absl::StatusOr<std::unique_ptr<grpc::Server>> serve(const std::vector<std::string>& addresses,
                                                    const std::vector<grpc::Service*>& services) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  // A second tesserad on the same port would take half the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  std::vector<int> ports(addresses.size(), 0);
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (absl::Status status = check_address(addresses[i]); !status.ok()) return status;
    builder.AddListeningPort(addresses[i], grpc::InsecureServerCredentials(), &ports[i]);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (server == nullptr || ports[i] == 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", addresses[i]));
    }
    const bool tcp = is_loopback(addresses[i]);
    spdlog::info("serving on {}",
                 tcp ? absl::StrCat(addresses[i].substr(0, addresses[i].rfind(':')), ":", ports[i])
                     : addresses[i]);
  }
  server->GetHealthCheckService()->SetServingStatus("tessera.v1.Coordinator", true);
  server->GetHealthCheckService()->SetServingStatus("tessera.v1.AgentService", true);
  return server;
}

}  // namespace tessera::server
