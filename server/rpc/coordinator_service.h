// The Coordinator service: each handler checks, calls, translates, fills. Reads come from the
// store, changes go through the control loop. Who may call is settled before
// (server/security/guarded_coordinator.h); what lists things leaves out what the caller may not
// see.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/agents/control.h"
#include "server/jobs/control_loop.h"
#include "server/rpc/watch.h"
#include "server/security/gate.h"
#include "server/telemetry/rpc_metrics.h"
#include "tessera/v1/coordinator.grpc.pb.h"

namespace tessera::server {

class CoordinatorService final : public v1::Coordinator::CallbackService {
 public:
  CoordinatorService(ControlLoop& loop, Control& control, Reader& reader, WatchHub& watches,
                     const Gate& gate, const Clock& clock, RpcMetrics& metrics);

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
  // Posts one of Control's methods that change a job.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* change_job(const char* name, grpc::CallbackServerContext* context,
                                       const Request& request, Response* response,
                                       void (Control::*method)(const std::string&,
                                                               Control::JobReply));
  // Has the call that is opened end with its caller's credential.
  std::function<void(std::weak_ptr<OpenCall>)> hold_to_caller(
      const grpc::CallbackServerContext& context) const;

  ControlLoop& loop_;
  Control& control_;
  Reader& reader_;
  WatchHub& watches_;
  const Gate& gate_;
  const Clock& clock_;
  RpcMetrics& metrics_;
};

}  // namespace tessera::server
