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

// Agents on other machines ping this often (worker/agent/session.h).
constexpr int kMinPingIntervalMs = 4'000;
// Of all of a call's headers, a token included.
constexpr int kMaxMetadataBytes = 16 << 10;
constexpr int kHandshakeTimeoutMs = 10'000;
// Calls on one connection; more wait at the client.
constexpr int kMaxStreamsPerConnection = 2048;

bool is_unix(const std::string& address) { return absl::StartsWith(address, "unix:"); }

absl::Status check_address(const std::string& address) {
  if (!is_unix(address)) return absl::OkStatus();
  constexpr size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;
  const size_t length = absl::StripPrefix(address, "unix:").size();
  if (length > 0 && length <= kMaxPath) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--listen ", address,
                                                 ": the path of a socket has 1 to ", kMaxPath,
                                                 " characters, this one has ", length));
}

void set_limits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  // A second tesserad on the same port would take half the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

absl::StatusOr<std::unique_ptr<grpc::Server>> start(grpc::ServerBuilder& builder,
                                                    std::vector<Listener>& listeners) {
  grpc::EnableDefaultHealthCheckService(true);
  set_limits(builder);
  for (Listener& listener : listeners) {
    if (absl::Status status = check_address(listener.address); !status.ok()) return status;
    builder.AddListeningPort(listener.address, listener.credentials, &listener.port);
  }
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  for (const Listener& listener : listeners) {
    if (server == nullptr || listener.port == 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", listener.address));
    }
    const std::string host = listener.address.substr(0, listener.address.rfind(':'));
    spdlog::info("serving on {}", is_unix(listener.address)
                                      ? listener.address
                                      : absl::StrCat(host, ":", listener.port));
  }
  return server;
}

}  // namespace

bool is_loopback(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) return false;
  const std::string host = address.substr(0, colon);
  return host == "127.0.0.1" || host == "localhost" || host == "[::1]";
}

absl::StatusOr<std::unique_ptr<grpc::Server>> serve(std::vector<Listener>& listeners,
                                                    const std::vector<grpc::Service*>& services) {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  for (grpc::Service* service : services) builder.RegisterService(service);
  auto server = start(builder, listeners);
  if (!server.ok()) return server;
  for (const char* service :
       {"tessera.v1.Coordinator", "tessera.v1.AgentService", "tessera.v1.Access"}) {
    (*server)->GetHealthCheckService()->SetServingStatus(service, true);
  }
  return server;
}

absl::StatusOr<std::unique_ptr<grpc::Server>> serve_standby(std::vector<Listener>& listeners,
                                                            grpc::CallbackGenericService& refusal) {
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&refusal);
  auto server = start(builder, listeners);
  if (server.ok()) (*server)->GetHealthCheckService()->SetServingStatus(false);
  return server;
}

}  // namespace tessera::server
