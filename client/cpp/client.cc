#include "client/cpp/client.h"

#include <algorithm>
#include <random>
#include <utility>

#include <grpcpp/client_context.h>

#include "absl/strings/str_format.h"
#include "client/cpp/status.h"
#include "proto/spec/addresses.h"

namespace tessera {
namespace {

// Of calls that an agent's machine works for: a check and a plan, of up to a minute each.
constexpr std::chrono::seconds kSubmitTimeout{150};
constexpr std::chrono::seconds kProfileTimeout{660};
constexpr std::chrono::milliseconds kSettleTime{200};
constexpr int kPageSize = 200;
// Whoever is not there any more is given up before this (channel.cc: a connection is waited for
// 5 s, or a ping is due for 5 s and its answer for 5 s). A watch that lasted longer was well.
constexpr std::chrono::seconds kLongestSilence{16};
// A service that says when to come again is believed for this long, however little patience there
// is.
constexpr std::chrono::seconds kMaxPushback{10};

absl::Status stopped() { return absl::CancelledError("interrupted"); }

}  // namespace

std::string make_request_id() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

bool is_terminal(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

absl::StatusOr<Client> Client::connect(const std::string& address, Patience patience,
                                       const ConnectOptions& options) {
  auto connection = make_connection(address, options);
  if (!connection.ok()) return connection.status();
  return Client(*std::move(connection), patience);
}

Client::Client(Connection connection, Patience patience)
    : authorization_(std::move(connection.authorization)),
      endpoints_(std::make_unique<Endpoints>()),
      patience_(patience) {
  for (auto& channel : connection.channels) endpoints_->all.emplace_back(std::move(channel));
}

void Client::identify(grpc::ClientContext& context) const {
  if (!authorization_.empty()) context.AddMetadata("authorization", authorization_);
}

void Client::settle(grpc::Channel& channel) const {
  const grpc_connectivity_state state = channel.GetState(true);
  if (state != GRPC_CHANNEL_CONNECTING && state != GRPC_CHANNEL_TRANSIENT_FAILURE) return;
  channel.WaitForConnected(std::chrono::system_clock::now() + kSettleTime);
}

std::optional<std::chrono::milliseconds> Client::pause_before_retry(
    const absl::Status& status, SteadyClock::duration since_begin) const {
  if (const auto told = retry_delay(status)) {
    const auto most = std::max<SteadyClock::duration>(patience_, kMaxPushback);
    if (since_begin + *told <= most) return told;
  }
  if (!is_transient(status) || since_begin >= patience_) return std::nullopt;
  return std::chrono::milliseconds(0);
}

bool Client::turn_elsewhere(const Endpoint& failed, const absl::Status& status) const {
  if (!absl::IsUnavailable(status) || !spec::may_be_elsewhere(error_reason(status))) return false;
  const auto& all = endpoints_->all;
  size_t index = static_cast<size_t>(&failed - all.data());
  // Calls of other threads may have turned before.
  endpoints_->current.compare_exchange_strong(index, (index + 1) % all.size());
  return true;
}

absl::Status Client::await_next_attempt(const Endpoint& failed, const absl::Status& status,
                                        Attempts& attempts, std::stop_token stop) const {
  if (stop.stop_requested()) return stopped();
  if (turn_elsewhere(failed, status) && ++attempts.num_elsewhere % endpoints_->all.size() != 0) {
    return absl::OkStatus();
  }
  const auto pause = pause_before_retry(status, SteadyClock::now() - attempts.begin);
  if (!pause) return status;
  const bool goes_on =
      *pause > std::chrono::milliseconds(0) ? wait_for(stop, *pause) : attempts.backoff.wait(stop);
  return goes_on ? absl::OkStatus() : stopped();
}

template <class Service, class Request, class Response>
absl::StatusOr<Response> Client::call_on(std::unique_ptr<Service> Endpoint::* stub,
                                         grpc::Status (Service::*method)(grpc::ClientContext*,
                                                                         const Request&, Response*),
                                         const Request& request, std::stop_token stop,
                                         std::chrono::seconds timeout) {
  Attempts attempts;
  while (true) {
    Endpoint& asked = endpoint();
    settle(*asked.channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    identify(context);
    const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
    Response response;
    const absl::Status status = to_status(((*(asked.*stub)).*method)(&context, request, &response));
    if (status.ok()) return response;
    const absl::Status next = await_next_attempt(asked, status, attempts, stop);
    if (!next.ok()) return next;
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

template <class Request, class Response>
absl::StatusOr<v1::Job> Client::call_job(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Response*),
                                         const std::string& id, std::stop_token stop) {
  Request request;
  request.set_id(id);
  auto response = call(method, request, std::move(stop));
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_job());
}

absl::StatusOr<v1::Job> Client::get(const std::string& id, std::stop_token stop) {
  return call_job(&Stub::GetJob, id, std::move(stop));
}

absl::StatusOr<v1::Job> Client::cancel(const std::string& id, std::stop_token stop) {
  return call_job(&Stub::CancelJob, id, std::move(stop));
}

absl::StatusOr<v1::Job> Client::suspend(const std::string& id, std::stop_token stop) {
  return call_job(&Stub::SuspendJob, id, std::move(stop));
}

absl::StatusOr<v1::Job> Client::resume(const std::string& id, std::stop_token stop) {
  return call_job(&Stub::ResumeJob, id, std::move(stop));
}

absl::StatusOr<v1::TraceJobResponse> Client::trace(const v1::TraceJobRequest& request,
                                                   std::stop_token stop) {
  return call(&Stub::TraceJob, request, std::move(stop));
}

absl::Status Client::record_collectives(const std::string& id, std::stop_token stop) {
  v1::RecordCollectivesRequest request;
  request.set_id(id);
  return call(&Stub::RecordCollectives, request, std::move(stop)).status();
}

absl::StatusOr<v1::ListQueueResponse> Client::queue(int limit, std::stop_token stop) {
  v1::ListQueueRequest request;
  request.set_limit(limit);
  return call(&Stub::ListQueue, request, std::move(stop));
}

absl::StatusOr<v1::Project> Client::set_project(const v1::Project& project, std::stop_token stop) {
  v1::SetProjectRequest request;
  *request.mutable_project() = project;
  auto response = call(&Stub::SetProject, request, std::move(stop));
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_project());
}

absl::StatusOr<std::vector<v1::Project>> Client::projects(std::stop_token stop) {
  auto response = call(&Stub::ListProjects, v1::ListProjectsRequest(), std::move(stop));
  if (!response.ok()) return response.status();
  return std::vector<v1::Project>(response->projects().begin(), response->projects().end());
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

absl::StatusOr<v1::CreateTokenResponse> Client::create_token(const v1::CreateTokenRequest& request,
                                                             std::stop_token stop) {
  return call_on(&Endpoint::access, &v1::Access::Stub::CreateToken, request, std::move(stop));
}

absl::StatusOr<std::vector<v1::Credential>> Client::credentials(std::stop_token stop) {
  auto response = call_on(&Endpoint::access, &v1::Access::Stub::ListCredentials,
                          v1::ListCredentialsRequest(), std::move(stop));
  if (!response.ok()) return response.status();
  return std::vector<v1::Credential>(response->credentials().begin(),
                                     response->credentials().end());
}

absl::StatusOr<v1::Credential> Client::revoke(const std::string& id, std::stop_token stop) {
  v1::RevokeCredentialRequest request;
  request.set_id(id);
  auto response =
      call_on(&Endpoint::access, &v1::Access::Stub::RevokeCredential, request, std::move(stop));
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_credential());
}

absl::Status Client::watch(const WatchOptions& options,
                           const std::function<void(const v1::Event&)>& on_event,
                           std::stop_token stop) {
  v1::WatchJobRequest request;
  request.set_id(options.id);
  request.set_start_revision(options.start_revision);
  request.set_no_follow(!options.follow);
  Attempts attempts;
  bool was_well = true;
  while (true) {
    Endpoint& asked = endpoint();
    settle(*asked.channel);
    grpc::ClientContext context;
    identify(context);
    const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
    const auto began = SteadyClock::now();
    const auto reader = asked.coordinator->WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (reader->Read(&response) && !stop.stop_requested()) {
      // A service that repeats itself must not make a watcher do so.
      if (response.event().revision() < request.start_revision()) continue;
      on_event(response.event());
      request.set_start_revision(response.event().revision() + 1);
      was_well = true;
    }
    if (stop.stop_requested()) context.TryCancel();
    const absl::Status status = to_status(reader->Finish());
    if (stop.stop_requested()) return stopped();
    if (status.ok() || !is_transient(status)) return status;
    // A watch may be quiet for hours before it breaks: patience counts from then on.
    if (was_well || SteadyClock::now() - began >= kLongestSilence) attempts = Attempts();
    was_well = false;
    const absl::Status next = await_next_attempt(asked, status, attempts, stop);
    if (!next.ok()) return next;
  }
}

absl::Status Client::generate(const v1::GenerateRequest& request,
                              const std::function<void(const v1::GenerateReply&)>& on_reply,
                              std::stop_token stop) {
  for (size_t left = endpoints_->all.size();; --left) {
    Endpoint& asked = endpoint();
    settle(*asked.channel);
    grpc::ClientContext context;
    identify(context);
    const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
    const auto reader = asked.coordinator->Generate(&context, request);
    v1::GenerateReply reply;
    bool has_begun = false;
    while (reader->Read(&reply) && !stop.stop_requested()) {
      has_begun = true;
      on_reply(reply);
    }
    if (stop.stop_requested()) context.TryCancel();
    const absl::Status status = to_status(reader->Finish());
    if (stop.stop_requested()) return stopped();
    if (has_begun || left == 1 || !turn_elsewhere(asked, status)) return status;
  }
}

}  // namespace tessera
