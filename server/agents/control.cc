#include "server/agents/control.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <google/protobuf/util/message_differencer.h>
#include <spdlog/spdlog.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/rules.h"
#include "server/agents/device_kinds.h"
#include "server/jobs/errors.h"
#include "server/jobs/state.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxUnfinishedJobs = 131'072;
constexpr size_t kMaxPendingProbes = 256;
constexpr absl::Duration kProfileTimeout = absl::Minutes(10);
constexpr absl::Duration kGenerateTimeout = absl::Hours(1);
constexpr size_t kMaxRequestIdLength = 128;
constexpr int kMaxTracedSteps = 64;
// Questions for a job's next plan that no agent answers, before the job fails.
constexpr int kMaxUnansweredPlans = 10;

// Which job holds each device, by node and index.
std::map<std::pair<std::string, int>, std::string> holders(const Gangs& gangs) {
  std::map<std::pair<std::string, int>, std::string> held;
  for (const auto& [number, record] : gangs.active()) {
    for (const v1::Placement& placement : record->job().placements()) {
      held[{placement.node(), placement.device_index()}] = record->job().id();
    }
  }
  return held;
}

absl::Status going_away() {
  return error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "tesserad is shutting down");
}

absl::Status has_ended(const std::string& id) {
  return error(absl::StatusCode::kFailedPrecondition, "JOB_ENDED",
               absl::StrCat("job ", id, " has ended"));
}

absl::Status too_many(const char* reason, size_t limit, const char* what) {
  return error(
      absl::StatusCode::kResourceExhausted, reason,
      absl::StrCat("the coordinator takes ", limit, " ", what, " at a time; try again later"));
}

// A profile needs neither a model nor a place to write to: of all rules those of the documents.
std::vector<spec::Violation> violations_of_documents(v1::JobSpec spec) {
  spec::fill_defaults(spec);
  std::vector<spec::Violation> violations = spec::validate(spec);
  std::erase_if(violations, [](const spec::Violation& violation) {
    return !absl::StartsWith(violation.field, "data") &&
           !absl::StartsWith(violation.field, "method");
  });
  return violations;
}

// Puts what is known of the job's memory, and what was planned, on the job.
void note_plan(JobTable& jobs, JobRecord& record, const Admission::Outcome& outcome) {
  v1::Job& job = *record.mutable_job();
  job.clear_peak();
  if (outcome.rehearsal) *job.mutable_rehearsal() = *outcome.rehearsal;
  if (!outcome.plan) return;
  *job.mutable_planned() = outcome.plan->changes();
  v1::Event event;
  *event.mutable_plan() = *outcome.plan;
  jobs.append(record, std::move(event));
}

}  // namespace

Control::Control(Store& store, const Clock& clock, ControlOptions options,
                 std::function<uint32_t()> random, AfterCommit after_commit, Observer observer)
    : store_(store),
      clock_(clock),
      after_commit_(after_commit),
      observer_(std::move(observer)),
      jobs_(store, clock, std::move(random)),
      nodes_(clock, options.lease, after_commit),
      gangs_(jobs_, nodes_, store, clock, options.gang),
      lifetimes_(jobs_, gangs_, clock),
      launches_(jobs_, nodes_, gangs_, clock, after_commit, options.launch),
      dispatch_(jobs_, nodes_, gangs_, store, clock, options.fair_share_half_life),
      probes_(nodes_, clock),
      admission_(nodes_, probes_, store, options.check_timeout),
      replan_pause_(options.check_timeout / 2) {
  for (const auto& [number, record] : jobs_.all()) {
    if (record->needs_plan()) replanning_[record->job().id()];
  }
}

void Control::answer(JobReply reply, absl::StatusOr<v1::Job> job) {
  after_commit_(
      [reply = std::move(reply), job = std::move(job)]() mutable { reply(std::move(job)); });
}

absl::StatusOr<v1::Job> Control::submitted_before(const v1::SubmitJobRequest& request) {
  const std::optional<Submission> before =
      request.validate_only() ? std::nullopt : store_.submission(request.request_id());
  if (!before) return absl::NotFoundError("");
  if (!google::protobuf::util::MessageDifferencer::Equals(before->spec, request.spec())) {
    return error(absl::StatusCode::kAlreadyExists, "REQUEST_ID_USED",
                 absl::StrCat("request_id \"", request.request_id(), "\" made job ", before->job_id,
                              " from another spec"));
  }
  if (const JobRecord* record = jobs_.find(before->job_id)) return record->job();
  absl::StatusOr<JobRecord> record = store_.queries().find(before->job_id);
  if (!record.ok()) return record.status();
  return record->job();
}

absl::Status Control::takes_changes() const { return shutting_down_ ? going_away() : outage_; }

void Control::submit(v1::SubmitJobRequest request, JobReply reply) {
  if (absl::Status status = takes_changes(); !status.ok()) return answer(std::move(reply), status);
  const size_t id_length = request.request_id().size();
  if (!request.validate_only() && (id_length == 0 || id_length > kMaxRequestIdLength)) {
    return answer(std::move(reply),
                  invalid_request({{"request_id",
                                    absl::StrCat("request_id must have 1 to ", kMaxRequestIdLength,
                                                 " characters, has ", id_length)}}));
  }
  if (auto before = submitted_before(request); before.ok() || !absl::IsNotFound(before.status())) {
    return answer(std::move(reply), std::move(before));
  }
  v1::JobSpec spec = request.spec();
  spec::fill_defaults(spec);
  if (const auto violations = spec::validate(spec); !violations.empty()) {
    return answer(std::move(reply), invalid_request(violations));
  }
  if (absl::Status status = launches_.check(spec); !status.ok()) {
    return answer(std::move(reply), status);
  }
  if (jobs_.size() >= kMaxUnfinishedJobs) {
    return answer(std::move(reply),
                  too_many("TOO_MANY_JOBS", kMaxUnfinishedJobs, "unfinished jobs"));
  }
  if (absl::Status status = dispatch_.may_queue(spec.project()); !status.ok()) {
    return answer(std::move(reply), status);
  }
  if (absl::Status status = can_ask(); !status.ok()) return answer(std::move(reply), status);
  const v1::JobSpec submitted = request.spec();
  admission_.start(
      submitted, spec,
      [this, request = std::move(request), reply = std::move(reply)](
          Admission::Outcome outcome) mutable { accept(request, outcome, std::move(reply)); });
}

absl::Status Control::can_ask() const {
  if (absl::Status status = takes_changes(); !status.ok()) return status;
  if (probes_.num_pending() < kMaxPendingProbes) return absl::OkStatus();
  return too_many("TOO_MANY_QUESTIONS", kMaxPendingProbes, "questions of what jobs need");
}

void Control::accept(const v1::SubmitJobRequest& request, const Admission::Outcome& outcome,
                     JobReply reply) {
  if (!outage_.ok()) return answer(std::move(reply), outage_);
  if (!outcome.status.ok()) return answer(std::move(reply), outcome.status);
  if (request.validate_only()) {
    v1::Job job;
    *job.mutable_spec() = outcome.spec;
    if (outcome.rehearsal) *job.mutable_rehearsal() = *outcome.rehearsal;
    if (outcome.plan) *job.mutable_planned() = outcome.plan->changes();
    return answer(std::move(reply), std::move(job));
  }
  // The same request may have come twice while the first was being checked.
  if (auto before = submitted_before(request); before.ok() || !absl::IsNotFound(before.status())) {
    return answer(std::move(reply), std::move(before));
  }
  // Others of the project may have come meanwhile.
  if (absl::Status status = dispatch_.may_queue(outcome.spec.project()); !status.ok()) {
    return answer(std::move(reply), status);
  }
  JobRecord& record = jobs_.create(outcome.spec, request.spec(), request.request_id());
  jobs_.log(record, v1::LogLine::INFO, outcome.note);
  note_plan(jobs_, record, outcome);
  lifetimes_.created(record);
  dispatch_.submitted(record);
  place_ = true;
  spdlog::info("job {}: submitted, {}", record.job().id(), outcome.note);
  answer(std::move(reply), record.job());
}

void Control::plan(v1::PlanRequest request, PlanReply reply) {
  v1::JobSpec spec = request.spec();
  spec::fill_defaults(spec);
  if (const auto violations = spec::validate(spec); !violations.empty()) {
    return reply(invalid_request(violations));
  }
  if (absl::Status status = can_ask(); !status.ok()) return reply(status);
  admission_.plan(std::move(request), spec,
                  [this, spec, reply = std::move(reply)](absl::StatusOr<v1::Plan> plan) mutable {
                    if (!plan.ok()) return reply(plan.status());
                    v1::PlanJobResponse response;
                    auto kinds = device_kinds(nodes_);
                    std::erase_if(kinds, [&](const v1::DeviceFit& kind) {
                      return kind.kind() != plan->as_written().device();
                    });
                    find_obstacles(plan->as_written(), kinds);
                    for (v1::DeviceFit& kind : kinds) *response.add_devices() = std::move(kind);
                    *response.mutable_plan() = *std::move(plan);
                    reply(std::move(response));
                  });
}

void Control::profile(v1::InspectRequest request, ProfileReply reply) {
  if (const auto violations = violations_of_documents(request.spec()); !violations.empty()) {
    return reply(invalid_request(violations));
  }
  if (absl::Status status = can_ask(); !status.ok()) return reply(status);
  v1::Probe probe;
  const std::string device = request.spec().resources().device();
  *probe.mutable_profile() = std::move(request);
  probes_.start(std::move(probe), device, kProfileTimeout,
                [reply = std::move(reply)](absl::StatusOr<v1::Probed> answer) mutable {
                  if (!answer.ok()) return reply(answer.status());
                  reply(answer->profiled());
                });
}

int64_t Control::generate(v1::GenerateRequest request, GenerateParts parts, GenerateEnd end) {
  if (absl::Status status = can_ask(); !status.ok()) {
    end(status);
    return 0;
  }
  v1::Probe probe;
  const std::string device = request.device().empty() ? "cpu" : request.device();
  *probe.mutable_generate() = std::move(request);
  return probes_.start(
      std::move(probe), device, kGenerateTimeout,
      [end = std::move(end)](const absl::StatusOr<v1::Probed>& answer) mutable {
        end(answer.status());
      },
      std::move(parts));
}

void Control::replan() {
  std::erase_if(replanning_, [this](const auto& entry) {
    const JobRecord* record = jobs_.find(entry.first);
    return !entry.second.is_asked && (record == nullptr || !record->needs_plan());
  });
  if (replanning_.empty() || !nodes_.any_ready()) return;
  std::vector<std::string> due;
  for (const auto& [id, waiting] : replanning_) {
    if (!waiting.is_asked && clock_.uptime() >= waiting.not_before) due.push_back(id);
  }
  for (const std::string& id : due) {
    const JobRecord& record = *jobs_.find(id);
    if (record.job().state() != v1::Job::RESTARTING) continue;
    replanning_[id].is_asked = true;
    admission_.replan(store_.submitted(record.number()), record.job().spec(),
                      [this, id](const Admission::Outcome& outcome) { replanned(id, outcome); });
  }
}

void Control::replanned(const std::string& job_id, const Admission::Outcome& outcome) {
  if (!outage_.ok()) return;
  Replanning waiting = replanning_[job_id];
  replanning_.erase(job_id);
  JobRecord* record = jobs_.find(job_id);
  // It may have been cancelled meanwhile.
  if (record == nullptr || record->job().state() != v1::Job::RESTARTING) return;
  if (absl::IsUnavailable(outcome.status) && ++waiting.num_unanswered < kMaxUnansweredPlans) {
    waiting.is_asked = false;
    waiting.not_before = clock_.uptime() + replan_pause_;
    replanning_[job_id] = waiting;
    return;
  }
  record->set_needs_plan(false);
  if (!outcome.status.ok()) {
    const bool is_exhausted = absl::IsFailedPrecondition(outcome.status);
    v1::Failure failure;
    failure.set_kind(v1::Failure::MEMORY);
    failure.set_rank(-1);
    failure.set_message(
        absl::StrCat("ran out of memory, and ",
                     is_exhausted ? "there is no other plan: " : "no other plan could be made: ",
                     outcome.status.message()));
    jobs_.transition(*record, v1::Job::FAILED, failure.message(), &failure);
    return;
  }
  record->set_replans(record->replans() + 1);
  *record->mutable_job()->mutable_spec() = outcome.spec;
  note_plan(jobs_, *record, outcome);
  gangs_.requeue(*record, outcome.plan->reason());
  place_ = true;
}

void Control::change(const std::string& id, JobReply reply,
                     absl::AnyInvocable<absl::Status(JobRecord&)> act, const absl::Status& unless) {
  if (!outage_.ok()) return answer(std::move(reply), outage_);
  const absl::StatusOr<JobRecord> found = store_.queries().find(id);
  if (!found.ok()) return answer(std::move(reply), found.status());
  JobRecord* record = jobs_.find(found->job().id());
  if (record == nullptr) {
    return unless.ok() ? answer(std::move(reply), found->job()) : answer(std::move(reply), unless);
  }
  if (absl::Status status = act(*record); !status.ok()) return answer(std::move(reply), status);
  place_ = true;
  answer(std::move(reply), record->job());
}

void Control::cancel(const std::string& id, JobReply reply) {
  const auto act = [this](JobRecord& record) {
    gangs_.cancel(record);
    return absl::OkStatus();
  };
  change(id, std::move(reply), act, absl::OkStatus());
}

void Control::suspend(const std::string& id, JobReply reply) {
  const auto act = [this](JobRecord& record) { return lifetimes_.suspend(record); };
  change(id, std::move(reply), act, has_ended(id));
}

void Control::resume(const std::string& id, JobReply reply) {
  const auto act = [this](JobRecord& record) { return lifetimes_.resume(record); };
  change(id, std::move(reply), act, has_ended(id));
}

void Control::trace(const v1::TraceJobRequest& request, JobReply reply) {
  std::vector<spec::Violation> violations;
  if (request.num_steps() < 0 || request.num_steps() > kMaxTracedSteps) {
    violations.push_back({"num_steps", absl::StrCat("num_steps must be from 1 to ", kMaxTracedSteps,
                                                    ", is ", request.num_steps())});
  }
  if (request.first_step() < 0) {
    violations.push_back(
        {"first_step", absl::StrCat("first_step must be at least 1, is ", request.first_step())});
  }
  if (!violations.empty()) return answer(std::move(reply), invalid_request(violations));
  const auto act = [this, &request](JobRecord& record) { return gangs_.trace(record, request); };
  change(request.id(), std::move(reply), act, has_ended(request.id()));
}

void Control::record_collectives(const std::string& id, JobReply reply) {
  const auto act = [this](JobRecord& record) { return gangs_.record_collectives(record); };
  change(id, std::move(reply), act, has_ended(id));
}

absl::StatusOr<v1::Project> Control::set_project(const v1::Project& project) {
  if (!outage_.ok()) return outage_;
  place_ = true;
  return dispatch_.set_project(project);
}

std::vector<v1::Node> Control::nodes() const {
  const auto held = holders(gangs_);
  std::vector<v1::Node> nodes;
  for (const auto& [name, state] : nodes_.all()) {
    v1::Node& node = nodes.emplace_back();
    node.set_name(name);
    node.set_state(state.lost ? v1::Node::LOST : v1::Node::READY);
    node.set_hostname(state.info.hostname());
    node.set_version(state.info.version());
    node.set_rack(state.info.rack());
    *node.mutable_last_seen_time() = to_proto(state.last_seen);
    for (const v1::Device& device : state.info.devices()) {
      v1::Device& added = *node.add_devices() = device;
      const auto holder = held.find({name, device.index()});
      added.set_job(holder == held.end() ? "" : holder->second);
    }
  }
  return nodes;
}

void Control::hello(const std::shared_ptr<AgentLink>& link, const v1::Hello& hello) {
  absl::Status status = takes_changes();
  if (status.ok()) status = launches_.admit(hello);
  if (status.ok()) status = nodes_.open(link, hello);
  if (!status.ok()) {
    after_commit_([link, status] { link->end(status); });
    return;
  }
  probes_.abandon(hello.node());
  v1::SessionResponse message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_epoch(store_.next_epoch(hello.node()));
  welcome.set_lease_ms(absl::ToInt64Milliseconds(nodes_.options().lease));
  welcome.set_fence_ms(absl::ToInt64Milliseconds(nodes_.options().fence));
  for (v1::Cursor& cursor : gangs_.cursors(hello)) *welcome.add_cursors() = std::move(cursor);
  spdlog::info("node {}: session {} with {} devices and {} runs", hello.node(), welcome.epoch(),
               hello.devices_size(), hello.runs_size());
  nodes_.send(hello.node(), std::move(message));
  gangs_.rejoined(hello);
  place_ = true;
}

void Control::receive(const std::shared_ptr<AgentLink>& link, const v1::SessionRequest& message) {
  const std::string node = nodes_.heard(link);
  if (node.empty() || !(outage_.ok() || message.has_heartbeat())) return;
  switch (message.kind_case()) {
    case v1::SessionRequest::kHeartbeat: {
      v1::SessionResponse answer;
      answer.mutable_heartbeat_ack()->set_number(message.heartbeat().number());
      nodes_.send(node, std::move(answer));
      return;
    }
    case v1::SessionRequest::KIND_NOT_SET:
      return;
    case v1::SessionRequest::kEventBatch:
      return gangs_.events(node, message.event_batch());
    case v1::SessionRequest::kPrepared:
      gangs_.prepared(node, message.prepared());
      break;
    case v1::SessionRequest::kRankExited:
      gangs_.rank_exited(node, message.rank_exited());
      break;
    case v1::SessionRequest::kRunEnded:
      gangs_.run_ended(node, message.run_ended());
      break;
    case v1::SessionRequest::kRankHung:
      return gangs_.rank_hung(node, message.rank_hung());
    case v1::SessionRequest::kProbed:
      probes_.probed(node, message.probed());
      break;
    case v1::SessionRequest::kHello:
      after_commit_([link] {
        link->end(error(absl::StatusCode::kInvalidArgument, "SECOND_HELLO",
                        "a session has one Hello, its first message"));
      });
      return;
  }
  place_ = true;
}

void Control::closed(const std::shared_ptr<AgentLink>& link) {
  const std::string node = nodes_.close(link);
  if (node.empty()) return;
  spdlog::info("node {}: session closed", node);
  launches_.closed(node);
  probes_.abandon(node);
}

void Control::shut_down() {
  shutting_down_ = true;
  probes_.abandon_all("the coordinator is shutting down");
  nodes_.end_all(going_away());
}

void Control::begin_outage(absl::Status why) {
  outage_ = std::move(why);
  probes_.abandon_all(std::string(outage_.message()));
}

void Control::tick() {
  const Nodes::Expired expired = nodes_.expire();
  for (const std::string& name : expired.lost) spdlog::warn("node {}: lost", name);
  for (const std::string& name : expired.given_up) {
    spdlog::warn("node {}: given up, its ranks have ended themselves", name);
    const absl::Duration silence = nodes_.options().fence + nodes_.options().lease;
    gangs_.give_up(name, absl::StrCat("node ", name, " was not heard from for ",
                                      absl::FormatDuration(silence)));
  }
  gangs_.tick();
  lifetimes_.tick();
  launches_.tick(dispatch_.shares());
  probes_.tick();
  replan();
  place_ = explain_ = true;
}

void Control::commit() {
  if (!outage_.ok()) return;
  for (const JobRecord* record : jobs_.changed()) {
    if (record->needs_plan()) replanning_[record->job().id()];
  }
  launches_.sync(jobs_.changed());
  if (std::exchange(place_, false)) dispatch_.place(std::exchange(explain_, false));
  const std::vector<JobChange> changes = jobs_.flush();
  store_.commit();
  for (const JobChange& change : changes) {
    for (const v1::Event& event : change.events) {
      if (!event.has_state()) continue;
      spdlog::info("job {}: {}: {}", change.job.id(), state_name(event.state().state()),
                   event.state().reason());
    }
  }
  observer_(changes);
}

}  // namespace tessera::server
