#include "client/cpp/client.h"

#include <sys/un.h>

#include <algorithm>
#include <random>
#include <utility>

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/cpp/status.h"
#include "client/cpp/wait.h"

namespace tessera {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Of calls that an agent's machine works for: a check and a plan, of up to a minute each.
constexpr std::chrono::seconds kSubmitTimeout{150};
constexpr std::chrono::seconds kProfileTimeout{660};
constexpr std::chrono::milliseconds kSettleTime{200};
constexpr int kPageSize = 200;

bool is_local(absl::string_view address) {
  constexpr size_t kPrefix = 5;  // unix:
  if (absl::StartsWith(address, "unix:")) {
    return address.size() > kPrefix && address.size() - kPrefix < sizeof(sockaddr_un::sun_path);
  }
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon + 1 == address.size()) return false;
  const absl::string_view host = address.substr(0, colon);
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

absl::Status stopped() { return absl::CancelledError("interrupted"); }

}  // namespace

std::string make_request_id() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

bool is_terminal(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

absl::StatusOr<Client> Client::connect(const std::string& address, Patience patience) {
  if (!is_local(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("address is \"", address,
                     "\", must be unix:PATH with a path of at most 107 characters, or a loopback "
                     "HOST:PORT, as in 127.0.0.1:7070"));
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // A restarted service is another one: no state of a shared channel may outlive it.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return Client(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments),
                patience);
}

Client::Client(std::shared_ptr<grpc::Channel> channel, Patience patience)
    : channel_(std::move(channel)),
      stub_(v1::Coordinator::NewStub(channel_)),
      patience_(patience) {}

void Client::settle() {
  const grpc_connectivity_state state = channel_->GetState(true);
  if (state != GRPC_CHANNEL_CONNECTING && state != GRPC_CHANNEL_TRANSIENT_FAILURE) return;
  channel_->WaitForConnected(std::chrono::system_clock::now() + kSettleTime);
}

template <class Request, class Response>
absl::StatusOr<Response> Client::call(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                                      const Request& request, std::stop_token stop,
                                      std::chrono::seconds timeout) {
  const auto give_up = SteadyClock::now() + patience_;
  Backoff backoff;
  while (true) {
    settle();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
    Response response;
    const absl::Status status = to_status(((*stub_).*method)(&context, request, &response));
    if (status.ok()) return response;
    if (stop.stop_requested()) return stopped();
    if (!is_transient(status) || SteadyClock::now() >= give_up) return status;
    if (!backoff.wait(stop)) return stopped();
  }
}

absl::StatusOr<v1::Job> Client::submit(const v1::JobSpec& spec, const std::string& request_id,
                                       std::stop_token stop) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(request_id);
  auto response = call(&Stub::SubmitJob, request, std::move(stop), kSubmitTimeout);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_job());
}

absl::StatusOr<v1::PlanJobResponse> Client::plan(const v1::PlanRequest& request,
                                                 std::stop_token stop) {
  v1::PlanJobRequest message;
  *message.mutable_plan() = request;
  return call(&Stub::PlanJob, message, std::move(stop), kSubmitTimeout);
}

absl::StatusOr<v1::DataProfile> Client::profile(const v1::InspectRequest& request,
                                                std::stop_token stop) {
  v1::ProfileDataRequest message;
  *message.mutable_inspect() = request;
  auto response = call(&Stub::ProfileData, message, std::move(stop), kProfileTimeout);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_profile());
}

absl::StatusOr<v1::Job> Client::get(const std::string& id, std::stop_token stop) {
  v1::GetJobRequest request;
  request.set_id(id);
  auto response = call(&Stub::GetJob, request, std::move(stop));
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_job());
}

absl::StatusOr<v1::Job> Client::cancel(const std::string& id, std::stop_token stop) {
  v1::CancelJobRequest request;
  request.set_id(id);
  auto response = call(&Stub::CancelJob, request, std::move(stop));
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_job());
}

absl::StatusOr<std::vector<v1::Job>> Client::list(const std::vector<v1::Job::State>& states,
                                                  size_t limit, std::stop_token stop) {
  std::vector<v1::Job> jobs;
  v1::ListJobsRequest request;
  request.set_page_size(static_cast<int>(std::min<size_t>(limit, kPageSize)));
  for (const v1::Job::State state : states) request.add_states(state);
  while (jobs.size() < limit) {
    auto response = call(&Stub::ListJobs, request, stop);
    if (!response.ok()) return response.status();
    for (v1::Job& job : *response->mutable_jobs()) {
      if (jobs.size() < limit) jobs.push_back(std::move(job));
    }
    if (response->next_page_token().empty()) break;
    request.set_page_token(response->next_page_token());
  }
  return jobs;
}

absl::StatusOr<std::vector<v1::Node>> Client::nodes(std::stop_token stop) {
  auto response = call(&Stub::ListNodes, v1::ListNodesRequest(), std::move(stop));
  if (!response.ok()) return response.status();
  return std::vector<v1::Node>(response->nodes().begin(), response->nodes().end());
}

absl::Status Client::watch(const WatchOptions& options,
                           const std::function<void(const v1::Event&)>& on_event,
                           std::stop_token stop) {
  v1::WatchJobRequest request;
  request.set_id(options.id);
  request.set_start_revision(options.start_revision);
  request.set_no_follow(!options.follow);
  SteadyClock::time_point give_up;
  Backoff backoff;
  while (true) {
    settle();
    grpc::ClientContext context;
    const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
    const auto began = SteadyClock::now();
    const auto reader = stub_->WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (reader->Read(&response) && !stop.stop_requested()) {
      // A service that repeats itself must not make a watcher do so.
      if (response.event().revision() < request.start_revision()) continue;
      on_event(response.event());
      request.set_start_revision(response.event().revision() + 1);
      backoff.reset();
    }
    if (stop.stop_requested()) context.TryCancel();
    const absl::Status status = to_status(reader->Finish());
    if (stop.stop_requested()) return stopped();
    if (status.ok() || !is_transient(status)) return status;
    // A watch may be quiet for hours before it breaks: patience counts from then on.
    if (SteadyClock::now() - began >= Backoff::kLast) backoff.reset();
    if (backoff.is_first()) give_up = SteadyClock::now() + patience_;
    if (SteadyClock::now() >= give_up) return status;
    if (!backoff.wait(stop)) return stopped();
  }
}

absl::Status Client::generate(const v1::GenerateRequest& request,
                              const std::function<void(const v1::GenerateReply&)>& on_reply,
                              std::stop_token stop) {
  settle();
  grpc::ClientContext context;
  const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateReply reply;
  while (reader->Read(&reply) && !stop.stop_requested()) on_reply(reply);
  if (stop.stop_requested()) context.TryCancel();
  const absl::Status status = to_status(reader->Finish());
  return stop.stop_requested() ? stopped() : status;
}

}  // namespace tessera
