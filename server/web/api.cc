#include "server/web/api.h"

#include <limits>
#include <set>
#include <string>
#include <utility>

#include <httplib.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/jobs/errors.h"
#include "server/jobs/hide_jobs.h"
#include "server/jobs/list_jobs.h"
#include "server/telemetry/sparkline.h"
#include "server/web/json.h"

namespace tessera::server {
namespace {

constexpr const char* kJson = "application/json";
constexpr char kGetJob[] = "tessera.v1.Coordinator/GetJob";
constexpr char kListJobs[] = "tessera.v1.Coordinator/ListJobs";
constexpr char kListNodes[] = "tessera.v1.Coordinator/ListNodes";
constexpr char kProfileData[] = "tessera.v1.Coordinator/ProfileData";
constexpr char kWatchJob[] = "tessera.v1.Coordinator/WatchJob";
constexpr int64_t kMaxRevision = std::numeric_limits<int64_t>::max() - 1;
constexpr size_t kMaxSparklines = 100;
constexpr int64_t kDefaultPoints = 800;
constexpr int64_t kDefaultDocuments = 10'000;
constexpr int64_t kMaxDocuments = 1'000'000;

absl::Status bad_parameter(const std::string& name, const std::string& value,
                           const std::string& rule) {
  return invalid_request({{name, absl::StrCat(name, " is \"", value, "\", must be ", rule)}});
}

// A whole number of the query; `fallback` where it is not given.
absl::StatusOr<int64_t> number(const httplib::Request& request, const std::string& name,
                               int64_t fallback, int64_t low, int64_t high) {
  if (!request.has_param(name.c_str())) return fallback;
  const std::string text = request.get_param_value(name.c_str());
  int64_t value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= low && value <= high) return value;
  return bad_parameter(name, text, absl::StrCat("a whole number from ", low, " to ", high));
}

absl::Status read_states(const httplib::Request& request, v1::ListJobsRequest& list) {
  if (!request.has_param("states")) return absl::OkStatus();
  const std::string text = request.get_param_value("states");
  const std::vector<std::string> names = absl::StrSplit(text, ',', absl::SkipEmpty());
  for (const std::string& name : names) {
    v1::Job::State state;
    if (!v1::Job::State_Parse(name, &state) || state == v1::Job::STATE_UNSPECIFIED) {
      return bad_parameter("states", text,
                           "states of jobs with commas between, as in QUEUED,RUNNING");
    }
    list.add_states(state);
  }
  return absl::OkStatus();
}

// What a table of jobs shows: of the spec what tells jobs apart, of the rehearsal its peak.
void summarize(v1::Job& job) {
  static const std::set<std::string> kept{"name", "project", "model", "parallelism", "resources"};
  v1::JobSpec& spec = *job.mutable_spec();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  spec.GetReflection()->ListFields(spec, &fields);
  for (const auto* field : fields) {
    if (!kept.contains(field->name())) spec.GetReflection()->ClearField(&spec, field);
  }
  job.clear_planned();
  if (job.has_rehearsal()) {
    job.mutable_rehearsal()->clear_owners();
    job.mutable_rehearsal()->clear_host_owners();
    job.mutable_rehearsal()->clear_phases();
  }
}

void answer(httplib::Response& response, const google::protobuf::Message& message) {
  response.set_content(to_json(message), kJson);
}

}  // namespace

void Api::route(httplib::Server& server) {
  const auto get = [&](const char* pattern,
                       absl::Status (Api::*handler)(const Request&, Response&)) {
    server.Get(pattern, [this, handler](const Request& request, Response& response) {
      response.set_header("Cache-Control", "no-store");
      const absl::Status status = (this->*handler)(request, response);
      if (!status.ok()) answer_error(response, status);
    });
  };
  get("/api/v1/jobs", &Api::jobs);
  get("/api/v1/jobs/([^/]+)", &Api::job);
  get("/api/v1/jobs/([^/]+)/history", &Api::history);
  get("/api/v1/jobs/([^/]+)/events", &Api::events);
  get("/api/v1/jobs/([^/]+)/lengths", &Api::lengths);
  get("/api/v1/sparklines", &Api::sparklines);
  get("/api/v1/nodes", &Api::nodes);
}

template <typename Message>
absl::StatusOr<Api::Found> Api::find(const Request& request, std::string_view method) {
  Message named;
  named.set_id(request.matches[1]);
  const absl::StatusOr<Identity> caller = gate_.admit(request, method, &named);
  if (!caller.ok()) return caller.status();
  absl::StatusOr<JobRecord> record =
      sources_.reader([&](Queries& queries) { return queries.find(named.id()); });
  if (!record.ok()) return record.status();
  return Found{*caller, *std::move(record)};
}

absl::Status Api::jobs(const Request& request, Response& response) {
  const absl::StatusOr<Identity> caller = gate_.admit(request, kListJobs);
  if (!caller.ok()) return caller.status();
  v1::ListJobsRequest list;
  const auto size = number(request, "page_size", 50, 1, 1000);
  if (!size.ok()) return size.status();
  list.set_page_size(static_cast<int32_t>(*size));
  list.set_page_token(request.get_param_value("page_token"));
  if (absl::Status status = read_states(request, list); !status.ok()) return status;
  const std::string view = request.get_param_value("view");
  if (view != "" && view != "summary") return bad_parameter("view", view, "summary");
  v1::ListJobsResponse page;
  const auto sees = [&](const std::string& project) { return caller->sees(project); };
  if (absl::Status status = list_jobs(sources_.reader, sees, list, page); !status.ok()) {
    return status;
  }
  if (view == "summary") {
    for (v1::Job& job : *page.mutable_jobs()) summarize(job);
  }
  answer(response, page);
  return absl::OkStatus();
}

absl::Status Api::job(const Request& request, Response& response) {
  const absl::StatusOr<Found> found = find<v1::GetJobRequest>(request, kGetJob);
  if (!found.ok()) return found.status();
  v1::GetJobResponse job;
  *job.mutable_job() = found->record.job();
  answer(response, job);
  return absl::OkStatus();
}

absl::Status Api::history(const Request& request, Response& response) {
  const auto points = number(request, "points", kDefaultPoints, 2, kMaxHistoryPoints);
  if (!points.ok()) return points.status();
  const auto rank = number(request, "rank", 0, 0, std::numeric_limits<int32_t>::max());
  if (!rank.ok()) return rank.status();
  const absl::StatusOr<Found> found = find<v1::WatchJobRequest>(request, kWatchJob);
  if (!found.ok()) return found.status();
  answer(response, sources_.histories.get(found->record.number(), static_cast<size_t>(*points),
                                          static_cast<int>(*rank)));
  return absl::OkStatus();
}

absl::Status Api::events(const Request& request, Response& response) {
  auto after = number(request, "after", 0, 0, kMaxRevision);
  if (!after.ok()) return after.status();
  // A browser that comes back by itself says so; its address is still that of the first time.
  if (const std::string last = request.get_header_value("Last-Event-ID"); !last.empty()) {
    if (!absl::SimpleAtoi(last, &*after) || *after < 0 || *after > kMaxRevision) {
      return bad_parameter("Last-Event-ID", last, "a revision");
    }
  }
  const absl::StatusOr<Found> found = find<v1::WatchJobRequest>(request, kWatchJob);
  if (!found.ok()) return found.status();
  const auto stream = sources_.streams.open(found->record.number(), *after);
  if (stream == nullptr) {
    return error(absl::StatusCode::kResourceExhausted, "TOO_MANY_WATCHERS",
                 absl::StrCat("the dashboard serves ", EventStreams::kMaxStreams,
                              " watchers at a time; try again later"));
  }
  gate_.hold(found->caller, stream);
  response.set_chunked_content_provider(
      "text/event-stream", [stream](size_t, httplib::DataSink& sink) {
        const auto progress = stream->advance([&sink](std::string_view text) {
          return sink.write(text.data(), text.size()) && sink.is_writable();
        });
        if (progress == EventStream::Progress::kEnded) sink.done();
        return progress != EventStream::Progress::kGone;
      });
  return absl::OkStatus();
}

absl::Status Api::lengths(const Request& request, Response& response) {
  const auto documents = number(request, "documents", kDefaultDocuments, 1, kMaxDocuments);
  if (!documents.ok()) return documents.status();
  const absl::StatusOr<Found> found = find<v1::GetJobRequest>(request, kGetJob);
  if (!found.ok()) return found.status();
  v1::ProfileDataRequest profiled;
  v1::InspectRequest& inspect = *profiled.mutable_inspect();
  *inspect.mutable_spec() = found->record.job().spec();
  inspect.set_max_documents(*documents);
  inspect.mutable_profile();
  if (const auto caller = gate_.admit(request, kProfileData, &profiled); !caller.ok()) {
    return caller.status();
  }
  if (profiling_.exchange(true)) {
    return error(absl::StatusCode::kResourceExhausted, "BUSY",
                 "the lengths of another job's documents are being read; try again later");
  }
  const absl::Cleanup done = [this] { profiling_ = false; };
  const absl::StatusOr<v1::DataProfile> profile = sources_.profile(std::move(inspect));
  if (profile.ok()) answer(response, *profile);
  return profile.status();
}

absl::Status Api::sparklines(const Request& request, Response& response) {
  const absl::StatusOr<Identity> caller = gate_.admit(request, kListJobs);
  if (!caller.ok()) return caller.status();
  const std::string ids = request.get_param_value("ids");
  const std::vector<std::string> names = absl::StrSplit(ids, ',', absl::SkipEmpty());
  if (names.size() > kMaxSparklines) {
    return bad_parameter("ids", ids, absl::StrCat("at most ", kMaxSparklines, " ids"));
  }
  Sparklines lines;
  for (const std::string& id : names) {
    // A turn each: others read between.
    sources_.reader([&](Queries& queries) {
      const absl::StatusOr<JobRecord> record = queries.find(id);
      if (!record.ok() || !caller->sees(record->job().spec().project())) return false;
      Sparkline line = sparkline(queries, *record);
      if (line.step_size() > 0) (*lines.mutable_jobs())[record->job().id()] = std::move(line);
      return true;
    });
  }
  answer(response, lines);
  return absl::OkStatus();
}

absl::Status Api::nodes(const Request& request, Response& response) {
  const absl::StatusOr<Identity> caller = gate_.admit(request, kListNodes);
  if (!caller.ok()) return caller.status();
  v1::ListNodesResponse list;
  for (v1::Node& node : sources_.nodes()) *list.add_nodes() = std::move(node);
  const auto sees = [&](const std::string& project) { return caller->sees(project); };
  if (caller->is_limited()) hide_jobs(sources_.reader, sees, list);
  answer(response, list);
  return absl::OkStatus();
}

}  // namespace tessera::server
