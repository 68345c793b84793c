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

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/channel.h"
#include "client/cpp/wait.h"
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

  // `address` is "unix:PATH" or HOST:PORT, which takes `options`; or those of several coordinators,
  // separated by commas: calls go to the one that leads. INVALID_ARGUMENT: see channel.h. Does not
  // wait for the service to be there.
  static absl::StatusOr<Client> connect(const std::string& address, Patience patience = {},
                                        const ConnectOptions& options = {});

  // All attempts carry the same request id: the job exists once, however often they are made.
  absl::StatusOr<v1::Job> submit(const v1::JobSpec& spec, const std::string& request_id,
                                 std::stop_token stop = {});
  absl::StatusOr<v1::Job> get(const std::string& id, std::stop_token stop = {});
  absl::StatusOr<v1::Job> cancel(const std::string& id, std::stop_token stop = {});
  absl::StatusOr<v1::Job> suspend(const std::string& id, std::stop_token stop = {});
  absl::StatusOr<v1::Job> resume(const std::string& id, std::stop_token stop = {});
  // Returns once the ranks were asked; TraceSaved events tell of the traces.
  absl::StatusOr<v1::TraceJobResponse> trace(const v1::TraceJobRequest& request,
                                             std::stop_token stop = {});
  // Likewise; CollectiveRecord events are the answers.
  absl::Status record_collectives(const std::string& id, std::stop_token stop = {});
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

  // A coordinator.
  struct Endpoint {
    explicit Endpoint(std::shared_ptr<grpc::Channel> way)
        : channel(std::move(way)),
          coordinator(v1::Coordinator::NewStub(channel)),
          access(v1::Access::NewStub(channel)) {}
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<Stub> coordinator;
    std::unique_ptr<v1::Access::Stub> access;
  };
  // All of them, and which one is called.
  struct Endpoints {
    std::vector<Endpoint> all;
    std::atomic<size_t> current = 0;
  };

  // How one call, with all its attempts, has fared.
  struct Attempts {
    SteadyClock::time_point begin = SteadyClock::now();
    Backoff backoff;
    // Coordinators that were asked in vain since the last pause.
    size_t num_elsewhere = 0;
  };

  Client(Connection connection, Patience patience);

  Endpoint& endpoint() const { return endpoints_->all[endpoints_->current]; }
  // Whether another coordinator may take the call that ended so; the next one is called then.
  bool turn_elsewhere(const Endpoint& failed, const absl::Status& status) const;
  // After `status` of a call to `failed`: waits until the next attempt is due. An error: there is
  // to be none, `status` or that the caller was stopped.
  absl::Status await_next_attempt(const Endpoint& failed, const absl::Status& status,
                                  Attempts& attempts, std::stop_token stop) const;

  // Says who calls.
  void identify(grpc::ClientContext& context) const;
  // How long to wait before a call that failed is made again, 0: as long as the backoff says.
  // nullopt: it is not made again.
  std::optional<std::chrono::milliseconds> pause_before_retry(
      const absl::Status& status, SteadyClock::duration since_begin) const;

  // After a failed connection, waits a moment for the next one. A call that fails at once does not
  // drive the channel: it would take seconds to notice that the service is back.
  void settle(grpc::Channel& channel) const;

  template <class Service, class Request, class Response>
  absl::StatusOr<Response> call_on(std::unique_ptr<Service> Endpoint::* stub,
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
    return call_on(&Endpoint::coordinator, method, request, std::move(stop), timeout);
  }

  std::string authorization_;
  std::unique_ptr<Endpoints> endpoints_;
  Patience patience_;
};

}  // namespace tessera
