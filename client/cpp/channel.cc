#include "client/cpp/channel.h"

#include <sys/un.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/spec/addresses.h"

namespace tessera {
namespace {

constexpr size_t kMaxTokenBytes = 1024;
// A coordinator on another machine, or one of several, that answers no HTTP/2 ping for both
// together is given up: who only listens, as `tessera watch` does, would otherwise wait for ever.
// The service allows pings this frequent (server/rpc/server.cc).
constexpr int kPingIntervalMs = 5000;
constexpr int kPingTimeoutMs = 5000;

bool is_unix(absl::string_view address) { return absl::StartsWith(address, "unix:"); }

bool is_address(absl::string_view address) {
  constexpr size_t kPrefix = 5;  // unix:
  if (is_unix(address)) {
    return address.size() > kPrefix && address.size() - kPrefix < sizeof(sockaddr_un::sun_path);
  }
  const size_t colon = address.rfind(':');
  return colon != absl::string_view::npos && colon > 0 && colon + 1 < address.size();
}

bool is_loopback(absl::string_view address) {
  const absl::string_view host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

absl::StatusOr<std::string> read_file(const std::filesystem::path& path, absl::string_view what) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  if (!text || text.str().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is ", path.string(), ", which cannot be read or is empty"));
  }
  return std::move(text).str();
}

absl::StatusOr<std::string> read_token(const std::filesystem::path& path) {
  auto text = read_file(path, "the file of the token");
  if (!text.ok()) return text.status();
  const std::string token(absl::StripAsciiWhitespace(*text));
  // What it holds instead may be secret, too: it is not shown.
  if (token.empty() || token.size() > kMaxTokenBytes ||
      token.find_first_of(" \t\r\n") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file of the token is ", path.string(), ", must hold one token"));
  }
  return token;
}

absl::Status check(const std::string& address, const ConnectOptions& options) {
  if (!is_address(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("address is \"", address,
                     "\", must be unix:PATH with a path of at most 107 characters, or HOST:PORT, "
                     "as in 127.0.0.1:7070"));
  }
  if (is_unix(address) || !options.ca.empty()) return absl::OkStatus();
  if (!is_loopback(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("address is \"", address,
                     "\", on another machine: name the authority of its certificate (--ca FILE)"));
  }
  if (options.token_file.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("address is \"", address,
                   "\", and a token is sent over TLS alone: name the authority of the "
                   "service's certificate (--ca FILE)"));
}

grpc::ChannelArguments channel_arguments(bool may_vanish) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // A restarted service is another one: no state of a shared channel may outlive it.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (!may_vanish) return arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingIntervalMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A machine that is gone does not refuse: this is how long it is waited for.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kPingTimeoutMs);
  return arguments;
}

}  // namespace

absl::StatusOr<Connection> make_connection(const std::string& addresses,
                                           const ConnectOptions& options) {
  const std::vector<std::string> all = spec::split_addresses(addresses);
  for (const std::string& address : all) {
    if (absl::Status status = check(address, options); !status.ok()) return status;
  }
  Connection connection;
  if (!options.token_file.empty()) {
    auto token = read_token(options.token_file);
    if (!token.ok()) return token.status();
    connection.authorization = absl::StrCat("Bearer ", *token);
  }
  grpc::SslCredentialsOptions tls;
  const bool is_local = std::all_of(all.begin(), all.end(), is_unix);
  if (!is_local && !options.ca.empty()) {
    auto roots = read_file(options.ca, "the authority");
    if (!roots.ok()) return roots.status();
    tls.pem_root_certs = *std::move(roots);
  }
  for (const std::string& address : all) {
    const bool is_tls = !is_unix(address) && !options.ca.empty();
    connection.channels.push_back(grpc::CreateCustomChannel(
        address, is_tls ? grpc::SslCredentials(tls) : grpc::InsecureChannelCredentials(),
        channel_arguments(all.size() > 1 || !(is_unix(address) || is_loopback(address)))));
  }
  return connection;
}

}  // namespace tessera
