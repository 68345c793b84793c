#include "server/rpc/coordinator_service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/jobs/hide_jobs.h"
#include "server/jobs/list_jobs.h"
#include "server/rpc/generate.h"
#include "server/rpc/status.h"

namespace tessera::server {
namespace {

// One unary call: ends it once, and counts it.
class Call {
 public:
  Call(grpc::CallbackServerContext* context, const char* method, const Clock& clock,
       RpcMetrics& metrics)
      : reactor_(context->DefaultReactor()),
        method_(method),
        clock_(clock),
        metrics_(metrics),
        begin_(clock.uptime()) {}

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

  void finish(const absl::Status& status) const {
    const grpc::Status translated = to_grpc(status);
    metrics_.record(method_, translated.error_code(), clock_.uptime() - begin_);
    reactor_->Finish(translated);
  }

 private:
  grpc::ServerUnaryReactor* reactor_;
  const char* method_;
  const Clock& clock_;
  RpcMetrics& metrics_;
  absl::Duration begin_;
};

// A call that waits for the control loop. One that the loop drops, with all of a round that could
// not be written, is answered with why.
class LoopCall {
 public:
  LoopCall(const Call& call, ControlLoop& loop, const Control& control)
      : pending_(std::make_shared<Pending>(call, loop, control)) {}

  grpc::ServerUnaryReactor* reactor() const { return pending_->call.reactor(); }

  void finish(const absl::Status& status) const {
    pending_->is_finished = true;
    pending_->call.finish(status);
  }

 private:
  struct Pending {
    Pending(const Call& call, ControlLoop& loop, const Control& control)
        : call(call), loop(loop), control(control) {}

    ~Pending() {
      if (is_finished) return;
      // Later: only then does the control know of its outage.
      loop.post([call = call, &control = control] {
        call.finish(control.outage().ok()
                        ? error(absl::StatusCode::kUnavailable, "NOT_WRITTEN",
                                "the coordinator could not write its state; try again")
                        : control.outage());
      });
    }

    const Call call;
    ControlLoop& loop;
    const Control& control;
    bool is_finished = false;
  };

  std::shared_ptr<Pending> pending_;
};

// Runs a read of the store; a disk that fails is an answer, not an exception.
template <typename Read>
absl::Status guarded(Read read) {
  try {
    return read();
  } catch (const DatabaseError& failure) {
    return to_status(failure);
  }
}

}  // namespace

CoordinatorService::CoordinatorService(ControlLoop& loop, Control& control, Reader& reader,
                                       WatchHub& watches, const Gate& gate, const Clock& clock,
                                       RpcMetrics& metrics)
    : loop_(loop),
      control_(control),
      reader_(reader),
      watches_(watches),
      gate_(gate),
      clock_(clock),
      metrics_(metrics) {}

grpc::ServerUnaryReactor* CoordinatorService::SubmitJob(grpc::CallbackServerContext* context,
                                                        const v1::SubmitJobRequest* request,
                                                        v1::SubmitJobResponse* response) {
  const LoopCall call({context, "SubmitJob", clock_, metrics_}, loop_, control_);
  loop_.post([this, call, request = *request, response]() mutable {
    control_.submit(std::move(request), [call, response](absl::StatusOr<v1::Job> job) {
      if (job.ok()) *response->mutable_job() = *std::move(job);
      call.finish(job.status());
    });
  });
  return call.reactor();
}

grpc::ServerUnaryReactor* CoordinatorService::GetJob(grpc::CallbackServerContext* context,
                                                     const v1::GetJobRequest* request,
                                                     v1::GetJobResponse* response) {
  const Call call(context, "GetJob", clock_, metrics_);
  call.finish(guarded([&]() -> absl::Status {
    absl::StatusOr<JobRecord> record =
        reader_([&](Queries& queries) { return queries.find(request->id()); });
    if (record.ok()) *response->mutable_job() = std::move(*record->mutable_job());
    return record.status();
  }));
  return call.reactor();
}

grpc::ServerUnaryReactor* CoordinatorService::ListJobs(grpc::CallbackServerContext* context,
                                                       const v1::ListJobsRequest* request,
                                                       v1::ListJobsResponse* response) {
  const Call call(context, "ListJobs", clock_, metrics_);
  call.finish(guarded([&]() -> absl::Status {
    const auto caller = gate_.caller(*context);
    if (!caller.ok()) return caller.status();
    const auto sees = [&](const std::string& project) { return caller->sees(project); };
    return list_jobs(reader_, sees, *request, *response);
  }));
  return call.reactor();
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* CoordinatorService::change_job(
    const char* name, grpc::CallbackServerContext* context, const Request& request,
    Response* response, void (Control::*method)(const std::string&, Control::JobReply)) {
  const LoopCall call({context, name, clock_, metrics_}, loop_, control_);
  loop_.post([this, call, id = request.id(), response, method] {
    (control_.*method)(id, [call, response](absl::StatusOr<v1::Job> job) {
      if (job.ok()) *response->mutable_job() = *std::move(job);
      call.finish(job.status());
    });
  });
  return call.reactor();
}

grpc::ServerUnaryReactor* CoordinatorService::CancelJob(grpc::CallbackServerContext* context,
                                                        const v1::CancelJobRequest* request,
                                                        v1::CancelJobResponse* response) {
  return change_job("CancelJob", context, *request, response, &Control::cancel);
}

grpc::ServerUnaryReactor* CoordinatorService::SuspendJob(grpc::CallbackServerContext* context,
                                                         const v1::SuspendJobRequest* request,
                                                         v1::SuspendJobResponse* response) {
  return change_job("SuspendJob", context, *request, response, &Control::suspend);
}

grpc::ServerUnaryReactor* CoordinatorService::ResumeJob(grpc::CallbackServerContext* context,
                                                        const v1::ResumeJobRequest* request,
                                                        v1::ResumeJobResponse* response) {
  return change_job("ResumeJob", context, *request, response, &Control::resume);
}

grpc::ServerUnaryReactor* CoordinatorService::TraceJob(grpc::CallbackServerContext* context,
                                                       const v1::TraceJobRequest* request,
                                                       v1::TraceJobResponse* response) {
  const LoopCall call({context, "TraceJob", clock_, metrics_}, loop_, control_);
  loop_.post([this, call, request = *request, response] {
    control_.trace(request, [call, response](const absl::StatusOr<v1::Job>& job) {
      if (job.ok()) response->set_step(job->step().step());
      call.finish(job.status());
    });
  });
  return call.reactor();
}

grpc::ServerUnaryReactor* CoordinatorService::RecordCollectives(
    grpc::CallbackServerContext* context, const v1::RecordCollectivesRequest* request,
    v1::RecordCollectivesResponse*) {
  const LoopCall call({context, "RecordCollectives", clock_, metrics_}, loop_, control_);
  loop_.post([this, call, id = request->id()] {
    control_.record_collectives(
        id, [call](const absl::StatusOr<v1::Job>& job) { call.finish(job.status()); });
  });
  return call.reactor();
}

grpc::ServerUnaryReactor* CoordinatorService::ListQueue(grpc::CallbackServerContext* context,
                                                        const v1::ListQueueRequest* request,
                                                        v1::ListQueueResponse* response) {
  const LoopCall call({context, "ListQueue", clock_, metrics_}, loop_, control_);
  const int limit = request->limit();
  if (limit < 0 || limit > kMaxPageSize) {
    call.finish(invalid_request(
        {{"limit", absl::StrCat("limit must be between 0 and ", kMaxPageSize, ", is ", limit)}}));
    return call.reactor();
  }
  const auto caller = gate_.caller(*context);
  if (!caller.ok()) {
    call.finish(caller.status());
    return call.reactor();
  }
  const int wanted = limit == 0 ? kDefaultPageSize : limit;
  loop_.post([this, call, wanted, response, caller = *caller] {
    *response = control_.queue(static_cast<size_t>(caller.is_limited() ? kMaxPageSize : wanted));
    auto& entries = *response->mutable_entries();
    const auto hidden = std::remove_if(entries.begin(), entries.end(), [&](const auto& entry) {
      return !caller.sees(entry.project());
    });
    entries.erase(hidden, entries.end());
    if (entries.size() > wanted) entries.DeleteSubrange(wanted, entries.size() - wanted);
    loop_.after_commit([call] { call.finish(absl::OkStatus()); });
  });
  return call.reactor();
}

grpc::ServerUnaryReactor* CoordinatorService::SetProject(grpc::CallbackServerContext* context,
                                                         const v1::SetProjectRequest* request,
                                                         v1::SetProjectResponse* response) {
  const LoopCall call({context, "SetProject", clock_, metrics_}, loop_, control_);
  loop_.post([this, call, project = request->project(), response] {
    absl::StatusOr<v1::Project> set = control_.set_project(project);
    if (set.ok()) *response->mutable_project() = *set;
    loop_.after_commit([call, status = set.status()] { call.finish(status); });
  });
  return call.reactor();
}

grpc::ServerUnaryReactor* CoordinatorService::ListProjects(grpc::CallbackServerContext* context,
                                                           const v1::ListProjectsRequest*,
                                                           v1::ListProjectsResponse* response) {
  const LoopCall call({context, "ListProjects", clock_, metrics_}, loop_, control_);
  const auto caller = gate_.caller(*context);
  if (!caller.ok()) {
    call.finish(caller.status());
    return call.reactor();
  }
  loop_.post([this, call, response, caller = *caller] {
    for (v1::Project& project : control_.projects()) {
      if (caller.sees(project.name())) *response->add_projects() = std::move(project);
    }
    loop_.after_commit([call] { call.finish(absl::OkStatus()); });
  });
  return call.reactor();
}

std::function<void(std::weak_ptr<OpenCall>)> CoordinatorService::hold_to_caller(
    const grpc::CallbackServerContext& context) const {
  return [this, caller = gate_.caller(context)](const std::weak_ptr<OpenCall>& opened) {
    if (caller.ok()) return gate_.hold(*caller, opened);
    // Since the gate let the call in.
    if (const auto call = opened.lock()) call->interrupt(caller.status());
  };
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* CoordinatorService::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  return watches_.watch(*request, hold_to_caller(*context));
}

grpc::ServerUnaryReactor* CoordinatorService::ListNodes(grpc::CallbackServerContext* context,
                                                        const v1::ListNodesRequest* request,
                                                        v1::ListNodesResponse* response) {
  const LoopCall call({context, "ListNodes", clock_, metrics_}, loop_, control_);
  const auto caller = gate_.caller(*context);
  if (!caller.ok()) {
    call.finish(caller.status());
    return call.reactor();
  }
  loop_.post([this, call, response, caller = *caller] {
    for (v1::Node& node : control_.nodes()) *response->add_nodes() = std::move(node);
    loop_.after_commit([this, call, response, caller] {
      call.finish(guarded([&] {
        const auto sees = [&](const std::string& project) { return caller.sees(project); };
        if (caller.is_limited()) hide_jobs(reader_, sees, *response);
        return absl::OkStatus();
      }));
    });
  });
  return call.reactor();
}

grpc::ServerUnaryReactor* CoordinatorService::PlanJob(grpc::CallbackServerContext* context,
                                                      const v1::PlanJobRequest* request,
                                                      v1::PlanJobResponse* response) {
  const LoopCall call({context, "PlanJob", clock_, metrics_}, loop_, control_);
  loop_.post([this, call, plan = request->plan(), response]() mutable {
    control_.plan(std::move(plan), [call, response](absl::StatusOr<v1::PlanJobResponse> planned) {
      if (planned.ok()) *response = *std::move(planned);
      call.finish(planned.status());
    });
  });
  return call.reactor();
}

grpc::ServerUnaryReactor* CoordinatorService::ProfileData(grpc::CallbackServerContext* context,
                                                          const v1::ProfileDataRequest* request,
                                                          v1::ProfileDataResponse* response) {
  const LoopCall call({context, "ProfileData", clock_, metrics_}, loop_, control_);
  if (!request->inspect().has_profile()) {
    call.finish(invalid_request({{"inspect.profile", "inspect.profile is missing"}}));
    return call.reactor();
  }
  loop_.post([this, call, inspect = request->inspect(), response]() mutable {
    control_.profile(std::move(inspect), [call, response](absl::StatusOr<v1::DataProfile> profile) {
      if (profile.ok()) *response->mutable_profile() = *std::move(profile);
      call.finish(profile.status());
    });
  });
  return call.reactor();
}

grpc::ServerWriteReactor<v1::GenerateReply>* CoordinatorService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  return start_generation({loop_, control_, reader_, clock_, metrics_}, *request,
                          hold_to_caller(*context));
}

}  // namespace tessera::server
