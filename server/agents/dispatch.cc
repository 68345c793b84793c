#include "server/agents/dispatch.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/elastic.h"
#include "server/jobs/errors.h"
#include "server/jobs/state.h"
#include "server/launchers/launches.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxExplained = 64;
constexpr size_t kMaxProjects = 1024;
constexpr size_t kMaxProjectName = 63;
constexpr double kMinWeight = 1e-3, kMaxWeight = 1e3;

// What a rank holds, where the job was rehearsed. On fewer ranks each holds at most as much more as
// they are fewer.
int64_t bytes_per_rank(const JobRecord& record, int num_ranks) {
  const v1::Job& job = record.job();
  const int64_t peak = job.rehearsal().peak_bytes();
  const int wanted = std::max(1, job.spec().parallelism().num_processes());
  return num_ranks == wanted ? peak : peak * wanted / num_ranks;
}

std::vector<spec::Violation> violations_of(const v1::Project& project) {
  std::vector<spec::Violation> violations;
  const std::string& name = project.name();
  const bool is_name = !name.empty() && name.size() <= kMaxProjectName &&
                       std::all_of(name.begin(), name.end(), [](char c) {
                         return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
                                c == '_' || c == '.';
                       });
  if (!is_name) {
    violations.push_back(
        {"project.name",
         absl::StrCat("project.name is \"", name.substr(0, kMaxProjectName), "\", must have 1 to ",
                      kMaxProjectName, " letters, digits, '-', '_' and '.'")});
  }
  const double weight = project.weight();
  if (weight != 0 && !(weight >= kMinWeight && weight <= kMaxWeight)) {
    violations.push_back(
        {"project.weight", absl::StrCat("project.weight is ", weight, ", must be between ",
                                        kMinWeight, " and ", kMaxWeight)});
  }
  if (project.max_devices() < 0) {
    violations.push_back(
        {"project.max_devices",
         absl::StrCat("project.max_devices is ", project.max_devices(), ", must be 0 or above")});
  }
  if (project.max_queued() < 0) {
    violations.push_back(
        {"project.max_queued",
         absl::StrCat("project.max_queued is ", project.max_queued(), ", must be 0 or above")});
  }
  return violations;
}

ProjectPolicy policy_of(const v1::Project& project) {
  ProjectPolicy policy{.weight = project.weight()};
  if (project.has_max_devices()) policy.max_devices = project.max_devices();
  return policy;
}

// Of jobs from before there were projects.
std::string project_of(const JobRecord& record) {
  const v1::JobSpec& spec = record.job().spec();
  return spec.has_project() ? spec.project() : "default";
}

}  // namespace

Dispatch::Dispatch(JobTable& jobs, Nodes& nodes, Gangs& gangs, Store& store, const Clock& clock,
                   absl::Duration fair_share_half_life)
    : jobs_(jobs),
      nodes_(nodes),
      gangs_(gangs),
      store_(store),
      clock_(clock),
      scheduler_(fair_share_half_life) {
  for (const auto& [number, record] : jobs_.all()) sync(*record);
  for (const StoredProject& stored : store_.projects()) {
    const std::string& name = stored.project.name();
    projects_[name] = stored.project;
    scheduler_.shares().set(name, policy_of(stored.project));
    scheduler_.shares().restore(name, stored.mean, clock_.wall() - stored.mean_time,
                                clock_.uptime());
  }
  unsaved_.clear();
}

QueuedJob Dispatch::queued(const JobRecord& record) const {
  const v1::JobSpec& spec = record.job().spec();
  QueuedJob job{.id = record.job().id(),
                .number = record.number(),
                .project = project_of(record),
                .priority = spec.resources().priority(),
                .kind = spec.resources().device(),
                .model = absl::AsciiStrToLower(spec.resources().device_model()),
                .not_before = gangs_.not_before(record)};
  for (const int count : spec::process_counts(spec)) {
    job.sizes.push_back({count, bytes_per_rank(record, count)});
  }
  job.longest = time_limit(record) - gangs_.run_time(record) + grace_period(record) + kStopSlack;
  return job;
}

RunningJob Dispatch::running(const JobRecord& record) const {
  const v1::Job& job = record.job();
  const absl::Duration now = clock_.uptime();
  RunningJob running{.id = job.id(),
                     .number = record.number(),
                     .project = project_of(record),
                     .priority = job.spec().resources().priority(),
                     .kind = job.spec().resources().device(),
                     .bytes_per_rank = bytes_per_rank(record, std::max(1, job.placements_size())),
                     .preemptible = job.spec().resources().preemptible(),
                     .ending = job.state() != v1::Job::STARTING && job.state() != v1::Job::RUNNING,
                     .began = gangs_.began(record),
                     .ends_by = now + gangs_.time_to_end(record),
                     .stop_time = grace_period(record) + kStopSlack};
  if (is_launched(job.spec())) {
    // It counts for its project. Of devices that our own jobs wait for it has none to give.
    running.kind = job.spec().resources().launcher();
    running.preemptible = false;
  }
  for (const v1::Placement& placement : job.placements()) {
    running.spots.push_back({placement.node(), placement.device_index()});
  }
  return running;
}

void Dispatch::sync(const JobRecord& record) {
  const v1::Job& job = record.job();
  const int64_t number = record.number();
  const auto before = told_.find(number);
  const std::pair now_told(job.state(), job.attempt());
  if (before != told_.end() && before->second == now_told) return;
  const bool was_queued = before != told_.end() && before->second.first == v1::Job::QUEUED;
  const std::string project = project_of(record);
  num_queued_[project] += (job.state() == v1::Job::QUEUED) - was_queued;
  projects_.try_emplace(project).first->second.set_name(project);
  if (projects_[project].weight() == 0) projects_[project].set_weight(1);
  unsaved_.insert(project);
  if (job.state() == v1::Job::QUEUED && is_launched(job.spec())) {
    scheduler_.remove(number, clock_.uptime());
    launched_.insert(number);
  } else if (job.state() == v1::Job::QUEUED) {
    scheduler_.queue(queued(record), clock_.uptime());
  } else if (record.has_gang()) {
    scheduler_.run(running(record), clock_.uptime());
  } else {
    scheduler_.remove(number, clock_.uptime());
  }
  if (is_terminal(job.state())) {
    told_.erase(number);
  } else {
    told_[number] = now_told;
  }
  if (job.state() == v1::Job::QUEUED) return;
  explained_.erase(number);
  launched_.erase(number);
}

void Dispatch::sync_changes() {
  for (const std::string& name : nodes_.take_changed()) {
    if (const auto view = nodes_.ready(name)) {
      scheduler_.put_node(*view);
    } else {
      scheduler_.remove_node(name);
    }
  }
  for (const JobRecord* record : jobs_.changed()) sync(*record);
}

void Dispatch::place(bool explain) {
  sync_changes();
  const Decisions decisions = scheduler_.round(clock_.uptime());
  for (const JobStart& start : decisions.starts) {
    gangs_.launch(*jobs_.all().at(start.number), start.spots);
  }
  for (const Preemption& preemption : decisions.preemptions) {
    const v1::Job& by = jobs_.all().at(preemption.by)->job();
    gangs_.stop(*jobs_.all().at(preemption.victim), Stop::PREEMPT,
                absl::StrCat("makes room for job ", by.id(), " of priority ",
                             by.spec().resources().priority(), "; its ranks write a checkpoint"));
  }
  sync_changes();
  for (const JobRecord* record : jobs_.changed()) {
    if (!explained_.contains(record->number())) this->explain(record->number());
  }
  if (explain) {
    for (const int64_t number : scheduler_.order(kMaxExplained, clock_.uptime())) {
      this->explain(number);
    }
  }
  save_projects();
}

void Dispatch::explain(int64_t number) {
  JobRecord& record = *jobs_.all().at(number);
  if (record.job().state() != v1::Job::QUEUED || launched_.contains(number)) return;
  const std::string reason = scheduler_.why(number).reason;
  if (record.job().reason() == reason) return;
  record.mutable_job()->set_reason(reason);
  jobs_.touch(record);
  if (explained_.insert(number).second) jobs_.log(record, v1::LogLine::INFO, reason);
}

void Dispatch::save_projects() {
  for (const std::string& name : std::exchange(unsaved_, {})) {
    store_.put_project(
        {projects_.at(name), scheduler_.shares().mean(name, clock_.uptime()), clock_.wall()});
  }
}

absl::Status Dispatch::may_queue(const std::string& project) const {
  const auto known = projects_.find(project);
  if (known == projects_.end()) {
    if (projects_.size() < kMaxProjects) return absl::OkStatus();
    return error(absl::StatusCode::kResourceExhausted, "TOO_MANY_PROJECTS",
                 absl::StrCat("the coordinator has its most of ", kMaxProjects, " projects"));
  }
  if (!known->second.has_max_queued()) return absl::OkStatus();
  const auto queued = num_queued_.find(project);
  const int count = queued == num_queued_.end() ? 0 : queued->second;
  if (count < known->second.max_queued()) return absl::OkStatus();
  return error(absl::StatusCode::kResourceExhausted, "PROJECT_QUEUE_FULL",
               absl::StrCat("project ", project, " has ", count, " queued jobs, the most is ",
                            known->second.max_queued()));
}

absl::StatusOr<v1::Project> Dispatch::set_project(const v1::Project& project) {
  if (const auto violations = violations_of(project); !violations.empty()) {
    return invalid_request(violations);
  }
  if (!projects_.contains(project.name()) && projects_.size() >= kMaxProjects) {
    return error(absl::StatusCode::kResourceExhausted, "TOO_MANY_PROJECTS",
                 absl::StrCat("the coordinator has its most of ", kMaxProjects, " projects"));
  }
  v1::Project& known = projects_[project.name()];
  known = project;
  known.clear_devices();
  known.clear_queued();
  known.clear_mean_devices();
  if (known.weight() == 0) known.set_weight(1);
  scheduler_.shares().set(known.name(), policy_of(known));
  unsaved_.insert(known.name());
  save_projects();
  return describe(known.name());
}

v1::Project Dispatch::describe(const std::string& name) const {
  v1::Project project = projects_.at(name);
  project.set_devices(scheduler_.shares().held(name));
  const auto queued = num_queued_.find(name);
  project.set_queued(queued == num_queued_.end() ? 0 : queued->second);
  project.set_mean_devices(scheduler_.shares().mean(name, clock_.uptime()));
  return project;
}

std::vector<v1::Project> Dispatch::projects() const {
  std::vector<v1::Project> projects;
  for (const auto& [name, project] : projects_) projects.push_back(describe(name));
  return projects;
}

v1::QueueEntry Dispatch::entry_of(const JobRecord& record) const {
  const v1::Job& job = record.job();
  v1::QueueEntry entry;
  entry.set_job_id(job.id());
  entry.set_project(project_of(record));
  entry.set_priority(job.spec().resources().priority());
  entry.set_num_processes(job.spec().parallelism().num_processes());
  entry.set_device(job.spec().resources().device());
  *entry.mutable_create_time() = job.create_time();
  entry.set_reason(job.reason());
  return entry;
}

v1::ListQueueResponse Dispatch::queue(size_t limit) const {
  v1::ListQueueResponse response;
  response.set_num_queued(static_cast<int64_t>(scheduler_.num_queued() + launched_.size()));
  for (const int64_t number : scheduler_.order(limit, clock_.uptime())) {
    const Waiting waiting = scheduler_.why(number);
    v1::QueueEntry& entry = *response.add_entries() = entry_of(*jobs_.all().at(number));
    entry.set_reason(waiting.reason);
    if (waiting.start_by < absl::InfiniteDuration()) {
      *entry.mutable_start_by_time() =
          to_proto(clock_.wall() + (waiting.start_by - clock_.uptime()));
    }
  }
  // Where they stand is their cluster's to say.
  for (const int64_t number : launched_) {
    if (static_cast<size_t>(response.entries_size()) >= limit) break;
    *response.add_entries() = entry_of(*jobs_.all().at(number));
  }
  return response;
}

}  // namespace tessera::server
