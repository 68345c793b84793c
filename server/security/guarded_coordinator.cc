#include "server/security/guarded_coordinator.h"

#include "absl/strings/str_cat.h"

namespace tessera::server {
namespace {

// A stream that ends before its first message.
template <class Response>
class Refusal final : public grpc::ServerWriteReactor<Response> {
 public:
  explicit Refusal(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

std::optional<grpc::Status> GuardedCoordinator::refusal(const grpc::CallbackServerContext& context,
                                                        const char* name,
                                                        google::protobuf::Message& request) const {
  const auto caller =
      gate_.admit(context, absl::StrCat(v1::Coordinator::service_full_name(), "/", name), &request);
  if (caller.ok()) return std::nullopt;
  const grpc::Status status = to_grpc(caller.status());
  metrics_.record(name, status.error_code(), absl::ZeroDuration());
  return status;
}

template <class Request, class Response>
grpc::ServerUnaryReactor* GuardedCoordinator::unary(
    grpc::ServerUnaryReactor* (Inner::*method)(grpc::CallbackServerContext*, const Request*,
                                               Response*),
    const char* name, grpc::CallbackServerContext* context, const Request& request,
    Response* response) {
  Request checked = request;
  if (const auto status = refusal(*context, name, checked)) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(*status);
    return reactor;
  }
  return (inner_.*method)(context, &checked, response);
}

template <class Response, class Request>
grpc::ServerWriteReactor<Response>* GuardedCoordinator::stream(
    grpc::ServerWriteReactor<Response>* (Inner::*method)(grpc::CallbackServerContext*,
                                                         const Request*),
    const char* name, grpc::CallbackServerContext* context, const Request& request) {
  Request checked = request;
  if (const auto status = refusal(*context, name, checked)) return new Refusal<Response>(*status);
  return (inner_.*method)(context, &checked);
}

grpc::ServerUnaryReactor* GuardedCoordinator::SubmitJob(grpc::CallbackServerContext* context,
                                                        const v1::SubmitJobRequest* request,
                                                        v1::SubmitJobResponse* response) {
  return unary(&Inner::SubmitJob, "SubmitJob", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::GetJob(grpc::CallbackServerContext* context,
                                                     const v1::GetJobRequest* request,
                                                     v1::GetJobResponse* response) {
  return unary(&Inner::GetJob, "GetJob", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::ListJobs(grpc::CallbackServerContext* context,
                                                       const v1::ListJobsRequest* request,
                                                       v1::ListJobsResponse* response) {
  return unary(&Inner::ListJobs, "ListJobs", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::CancelJob(grpc::CallbackServerContext* context,
                                                        const v1::CancelJobRequest* request,
                                                        v1::CancelJobResponse* response) {
  return unary(&Inner::CancelJob, "CancelJob", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::SuspendJob(grpc::CallbackServerContext* context,
                                                         const v1::SuspendJobRequest* request,
                                                         v1::SuspendJobResponse* response) {
  return unary(&Inner::SuspendJob, "SuspendJob", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::ResumeJob(grpc::CallbackServerContext* context,
                                                        const v1::ResumeJobRequest* request,
                                                        v1::ResumeJobResponse* response) {
  return unary(&Inner::ResumeJob, "ResumeJob", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::TraceJob(grpc::CallbackServerContext* context,
                                                       const v1::TraceJobRequest* request,
                                                       v1::TraceJobResponse* response) {
  return unary(&Inner::TraceJob, "TraceJob", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::RecordCollectives(
    grpc::CallbackServerContext* context, const v1::RecordCollectivesRequest* request,
    v1::RecordCollectivesResponse* response) {
  return unary(&Inner::RecordCollectives, "RecordCollectives", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::ListQueue(grpc::CallbackServerContext* context,
                                                        const v1::ListQueueRequest* request,
                                                        v1::ListQueueResponse* response) {
  return unary(&Inner::ListQueue, "ListQueue", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::SetProject(grpc::CallbackServerContext* context,
                                                         const v1::SetProjectRequest* request,
                                                         v1::SetProjectResponse* response) {
  return unary(&Inner::SetProject, "SetProject", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::ListProjects(grpc::CallbackServerContext* context,
                                                           const v1::ListProjectsRequest* request,
                                                           v1::ListProjectsResponse* response) {
  return unary(&Inner::ListProjects, "ListProjects", context, *request, response);
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* GuardedCoordinator::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  return stream<v1::WatchJobResponse>(&Inner::WatchJob, "WatchJob", context, *request);
}

grpc::ServerUnaryReactor* GuardedCoordinator::ListNodes(grpc::CallbackServerContext* context,
                                                        const v1::ListNodesRequest* request,
                                                        v1::ListNodesResponse* response) {
  return unary(&Inner::ListNodes, "ListNodes", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::PlanJob(grpc::CallbackServerContext* context,
                                                      const v1::PlanJobRequest* request,
                                                      v1::PlanJobResponse* response) {
  return unary(&Inner::PlanJob, "PlanJob", context, *request, response);
}

grpc::ServerUnaryReactor* GuardedCoordinator::ProfileData(grpc::CallbackServerContext* context,
                                                          const v1::ProfileDataRequest* request,
                                                          v1::ProfileDataResponse* response) {
  return unary(&Inner::ProfileData, "ProfileData", context, *request, response);
}

grpc::ServerWriteReactor<v1::GenerateReply>* GuardedCoordinator::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  return stream<v1::GenerateReply>(&Inner::Generate, "Generate", context, *request);
}

}  // namespace tessera::server
