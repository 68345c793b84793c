// The service, from a program: submit jobs, follow them, ask about them.
//
//   auto client = Client::connect("unix:/run/tessera/tesserad.sock");
//   auto job = client->submit(spec, make_request_id(), stop);
//   client->watch({.id = job->id()}, [](const v1::Event& event) { ... }, stop);
//
// Thread safety: all methods may be called from any thread. Calls that fail for want of the
// service are made again within their patience, and those that a busy service puts off when it
// says; a stop request ends any of them with CANCELLED.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/channel.h"
#include "tessera/v1/access.grpc.pb.h"
#include "tessera/v1/coordinator.grpc.pb.h"

namespace tessera {

// A random id for SubmitJobRequest.
std::string make_request_id();

bool is_terminal(v1::Job::State state);

struct WatchOptions {
  std::string id;
  // First revision wanted. 0: from the start.
  int64_t start_revision = 0;
  // Wait for events to come, until the job has ended.
  bool follow = true;
};

class Client {
 public:
  // How long a call is tried again while the service cannot be reached.
  using Patience = std::chrono::milliseconds;

  // `address` is "unix:PATH" or HOST:PORT, which takes `options`. INVALID_ARGUMENT: see channel.h.
  // Does not wait for the service to be there.
  static absl::StatusOr<Client> connect(const std::string& address, Patience patience = {},
                                        const ConnectOptions& options = {});

  // All attempts carry the same request id: the job exists once, however often they are made.
  absl::StatusOr<v1::Job> submit(const v1::JobSpec& spec, const std::string& request_id,
                                 std::stop_token stop = {});
  absl::StatusOr<v1::Job> get(const std::string& id, std::stop_token stop = {});
  absl::StatusOr<v1::Job> cancel(const std::string& id, std::stop_token stop = {});
  absl::StatusOr<v1::Job> suspend(const std::string& id, std::stop_token stop = {});
  absl::StatusOr<v1::Job> resume(const std::string& id, std::stop_token stop = {});
  // At most `limit` jobs, in the order of the queue.
  absl::StatusOr<v1::ListQueueResponse> queue(int limit, std::stop_token stop = {});
  absl::StatusOr<v1::Project> set_project(const v1::Project& project, std::stop_token stop = {});
  absl::StatusOr<std::vector<v1::Project>> projects(std::stop_token stop = {});
  // At most `limit` jobs, newest first; only those in one of `states`, unless it is empty.
  absl::StatusOr<std::vector<v1::Job>> list(const std::vector<v1::Job::State>& states, size_t limit,
                                            std::stop_token stop = {});
  absl::StatusOr<std::vector<v1::Node>> nodes(std::stop_token stop = {});
  absl::StatusOr<v1::PlanJobResponse> plan(const v1::PlanRequest& request,
                                           std::stop_token stop = {});
  absl::StatusOr<v1::DataProfile> profile(const v1::InspectRequest& request,
                                          std::stop_token stop = {});

  // Who may call: for operators.
  absl::StatusOr<v1::CreateTokenResponse> create_token(const v1::CreateTokenRequest& request,
                                                       std::stop_token stop = {});
  absl::StatusOr<std::vector<v1::Credential>> credentials(std::stop_token stop = {});
  absl::StatusOr<v1::Credential> revoke(const std::string& id, std::stop_token stop = {});

  // Calls `on_reply` for each reply. Text that was made is not made again: a connection that breaks
  // ends it with UNAVAILABLE.
  absl::Status generate(const v1::GenerateRequest& request,
                        const std::function<void(const v1::GenerateReply&)>& on_reply,
                        std::stop_token stop = {});

  // Calls `on_event` for each event in order of revision, each once: a connection that breaks is
  // made again and goes on after the last event. Patience starts again with every event.
  absl::Status watch(const WatchOptions& options,
                     const std::function<void(const v1::Event&)>& on_event,
                     std::stop_token stop = {});

 private:
  using Stub = v1::Coordinator::Stub;

  static constexpr std::chrono::seconds kCallTimeout{30};

  using SteadyClock = std::chrono::steady_clock;

  Client(Connection connection, Patience patience);

  // Says who calls.
  void identify(grpc::ClientContext& context) const;
  // How long to wait before a call that failed is made again, 0: as long as the backoff says.
  // nullopt: it is not made again.
  std::optional<std::chrono::milliseconds> pause_before_retry(
      const absl::Status& status, SteadyClock::duration since_begin) const;

  // After a failed connection, waits a moment for the next one. A call that fails at once does not
  // drive the channel: it would take seconds to notice that the service is back.
  void settle();

  template <class Service, class Request, class Response>
  absl::StatusOr<Response> call_on(Service& stub,
                                   grpc::Status (Service::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                                   const Request& request, std::stop_token stop,
                                   std::chrono::seconds timeout = kCallTimeout);

  // A method that answers with the job that it names.
  template <class Request, class Response>
  absl::StatusOr<v1::Job> call_job(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                const Request&, Response*),
                                   const std::string& id, std::stop_token stop);

  template <class Request, class Response>
  absl::StatusOr<Response> call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request, std::stop_token stop,
                                std::chrono::seconds timeout = kCallTimeout) {
    return call_on(*stub_, method, request, std::move(stop), timeout);
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::string authorization_;
  std::unique_ptr<Stub> stub_;
  std::unique_ptr<v1::Access::Stub> access_;
  Patience patience_;
};

}  // namespace tessera
