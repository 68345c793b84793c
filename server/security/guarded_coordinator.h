// The Coordinator service as it is on the wire: each method passes the gate, and then the service's
// own. A method that is not here is UNIMPLEMENTED, so none can be forgotten to be guarded.
#pragma once

#include <optional>

#include "server/rpc/status.h"
#include "server/security/gate.h"
#include "server/telemetry/rpc_metrics.h"
#include "tessera/v1/coordinator.grpc.pb.h"

namespace tessera::server {

class GuardedCoordinator final : public v1::Coordinator::CallbackService {
 public:
  using Inner = v1::Coordinator::CallbackService;

  // `inner` copies what it needs of a request before it returns.
  GuardedCoordinator(Inner& inner, const Gate& gate, RpcMetrics& metrics)
      : inner_(inner), gate_(gate), metrics_(metrics) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::SubmitJobResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::CancelJobResponse* response) override;
  grpc::ServerUnaryReactor* SuspendJob(grpc::CallbackServerContext* context,
                                       const v1::SuspendJobRequest* request,
                                       v1::SuspendJobResponse* response) override;
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext* context,
                                      const v1::ResumeJobRequest* request,
                                      v1::ResumeJobResponse* response) override;
  grpc::ServerUnaryReactor* TraceJob(grpc::CallbackServerContext* context,
                                     const v1::TraceJobRequest* request,
                                     v1::TraceJobResponse* response) override;
  grpc::ServerUnaryReactor* RecordCollectives(grpc::CallbackServerContext* context,
                                              const v1::RecordCollectivesRequest* request,
                                              v1::RecordCollectivesResponse* response) override;
  grpc::ServerUnaryReactor* ListQueue(grpc::CallbackServerContext* context,
                                      const v1::ListQueueRequest* request,
                                      v1::ListQueueResponse* response) override;
  grpc::ServerUnaryReactor* SetProject(grpc::CallbackServerContext* context,
                                       const v1::SetProjectRequest* request,
                                       v1::SetProjectResponse* response) override;
  grpc::ServerUnaryReactor* ListProjects(grpc::CallbackServerContext* context,
                                         const v1::ListProjectsRequest* request,
                                         v1::ListProjectsResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) override;
  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context,
                                      const v1::ListNodesRequest* request,
                                      v1::ListNodesResponse* response) override;
  grpc::ServerUnaryReactor* PlanJob(grpc::CallbackServerContext* context,
                                    const v1::PlanJobRequest* request,
                                    v1::PlanJobResponse* response) override;
  grpc::ServerUnaryReactor* ProfileData(grpc::CallbackServerContext* context,
                                        const v1::ProfileDataRequest* request,
                                        v1::ProfileDataResponse* response) override;
  grpc::ServerWriteReactor<v1::GenerateReply>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;

 private:
  template <class Request, class Response>
  grpc::ServerUnaryReactor* unary(grpc::ServerUnaryReactor* (Inner::*method)(
                                      grpc::CallbackServerContext*, const Request*, Response*),
                                  const char* name, grpc::CallbackServerContext* context,
                                  const Request& request, Response* response);
  template <class Response, class Request>
  grpc::ServerWriteReactor<Response>* stream(grpc::ServerWriteReactor<Response>* (Inner::*method)(
                                                 grpc::CallbackServerContext*, const Request*),
                                             const char* name, grpc::CallbackServerContext* context,
                                             const Request& request);
  // nullopt: the call is allowed. Counts it where it is not.
  std::optional<grpc::Status> refusal(const grpc::CallbackServerContext& context, const char* name,
                                      google::protobuf::Message& request) const;

  Inner& inner_;
  const Gate& gate_;
  RpcMetrics& metrics_;
};

}  // namespace tessera::server
