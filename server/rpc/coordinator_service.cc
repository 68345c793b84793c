#include "server/rpc/coordinator_service.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/jobs/errors.h"
#include "server/rpc/generate.h"
#include "server/rpc/status.h"

namespace tessera::server {
namespace {

constexpr int kDefaultPageSize = 50;
constexpr int kMaxPageSize = 1000;

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

// Runs a read of the store; a disk that fails is an answer, not an exception.
template <typename Read>
absl::Status guarded(Read read) {
  try {
    return read();
  } catch (const SQLite::Exception& failure) {
    return error(absl::StatusCode::kInternal, "STORE", failure.what());
  }
}

// A page token holds where the next page starts, and the filter it belongs to.
std::string make_token(int64_t before, const std::string& filter) {
  return absl::WebSafeBase64Escape(absl::StrCat("1:", before, ":", filter));
}

bool read_token(const std::string& token, const std::string& filter, int64_t& before) {
  std::string text;
  if (!absl::WebSafeBase64Unescape(token, &text)) return false;
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  return parts.size() == 3 && parts[0] == "1" && absl::SimpleAtoi(parts[1], &before) &&
         parts[2] == filter;
}

absl::Status list_jobs(Reader& reader, const v1::ListJobsRequest& request,
                       v1::ListJobsResponse& response) {
  if (request.page_size() < 0 || request.page_size() > kMaxPageSize) {
    return invalid_request(
        {{"page_size", absl::StrCat("page_size must be between 0 and ", kMaxPageSize, ", is ",
                                    request.page_size())}});
  }
  std::vector<v1::Job::State> states;
  for (const int state : request.states()) states.push_back(static_cast<v1::Job::State>(state));
  const std::string filter = absl::StrJoin(states, ",");
  int64_t before = std::numeric_limits<int64_t>::max();
  if (!request.page_token().empty() && !read_token(request.page_token(), filter, before)) {
    return invalid_request(
        {{"page_token", "page_token is not one that this request's previous page gave"}});
  }
  const int size = request.page_size() == 0 ? kDefaultPageSize : request.page_size();
  JobPage page = reader([&](Queries& queries) { return queries.list(before, states, size); });
  if (page.more) response.set_next_page_token(make_token(page.records.back().number(), filter));
  for (JobRecord& record : page.records) *response.add_jobs() = std::move(*record.mutable_job());
  return absl::OkStatus();
}

}  // namespace

CoordinatorService::CoordinatorService(ControlLoop& loop, Control& control, Reader& reader,
                                       WatchHub& watches, const Clock& clock, RpcMetrics& metrics)
    : loop_(loop),
      control_(control),
      reader_(reader),
      watches_(watches),
      clock_(clock),
      metrics_(metrics) {}

grpc::ServerUnaryReactor* CoordinatorService::SubmitJob(grpc::CallbackServerContext* context,
                                                        const v1::SubmitJobRequest* request,
                                                        v1::SubmitJobResponse* response) {
  const Call call(context, "SubmitJob", clock_, metrics_);
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
  call.finish(guarded([&] { return list_jobs(reader_, *request, *response); }));
  return call.reactor();
}

grpc::ServerUnaryReactor* CoordinatorService::CancelJob(grpc::CallbackServerContext* context,
                                                        const v1::CancelJobRequest* request,
                                                        v1::CancelJobResponse* response) {
  const Call call(context, "CancelJob", clock_, metrics_);
  loop_.post([this, call, id = request->id(), response] {
    control_.cancel(id, [call, response](absl::StatusOr<v1::Job> job) {
      if (job.ok()) *response->mutable_job() = *std::move(job);
      call.finish(job.status());
    });
  });
  return call.reactor();
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* CoordinatorService::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  return watches_.watch(*request);
}

grpc::ServerUnaryReactor* CoordinatorService::ListNodes(grpc::CallbackServerContext* context,
                                                        const v1::ListNodesRequest* request,
                                                        v1::ListNodesResponse* response) {
  const Call call(context, "ListNodes", clock_, metrics_);
  loop_.post([this, call, response] {
    for (v1::Node& node : control_.nodes()) *response->add_nodes() = std::move(node);
    loop_.after_commit([call] { call.finish(absl::OkStatus()); });
  });
  return call.reactor();
}

grpc::ServerUnaryReactor* CoordinatorService::PlanJob(grpc::CallbackServerContext* context,
                                                      const v1::PlanJobRequest* request,
                                                      v1::PlanJobResponse* response) {
  const Call call(context, "PlanJob", clock_, metrics_);
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
  const Call call(context, "ProfileData", clock_, metrics_);
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
    grpc::CallbackServerContext*, const v1::GenerateRequest* request) {
  return start_generation({loop_, control_, reader_, clock_, metrics_}, *request);
}

}  // namespace tessera::server
