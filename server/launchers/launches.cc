#include "server/launchers/launches.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/elastic.h"
#include "server/jobs/errors.h"
#include "server/jobs/state.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kMinSubmitPause = absl::Seconds(1);
constexpr absl::Duration kMaxSubmitPause = absl::Seconds(60);
// Beyond a job's own limit: until its agents have joined.
constexpr absl::Duration kJoinSlack = absl::Minutes(5);

int divide_up(int count, int by) { return (count + by - 1) / by; }

std::string called(const std::string& kind, const ClusterJob& job) {
  return absl::StrCat(kind, " job ", job.id);
}

}  // namespace

bool is_launched(const v1::JobSpec& spec) {
  // Jobs of before there was the field have none.
  return spec.resources().has_launcher() && spec.resources().launcher() != "agents";
}

std::string node_of_allocation(const std::string& allocation, int index) {
  return absl::StrCat(allocation, "-", index);
}

Launches::Launches(JobTable& jobs, Nodes& nodes, Gangs& gangs, const Clock& clock,
                   AfterCommit after_commit, LaunchOptions options)
    : jobs_(jobs),
      nodes_(nodes),
      gangs_(gangs),
      clock_(clock),
      after_commit_(std::move(after_commit)),
      options_(std::move(options)),
      prefix_(absl::StrCat("tessera-", options_.owner, "-")) {
  for (const auto& [number, record] : jobs_.all()) {
    if (is_launched(record->job().spec())) numbers_.insert(number);
    if (record->has_allocation()) watched_[record->allocation().name()].number = number;
  }
}

void Launches::add(std::shared_ptr<LaunchThread> launcher) {
  const std::string kind = launcher->kind();
  clusters_[kind].launcher = std::move(launcher);
}

absl::Status Launches::check(const v1::JobSpec& spec) const {
  if (!is_launched(spec)) return absl::OkStatus();
  const std::string& launcher = spec.resources().launcher();
  std::vector<spec::Violation> violations;
  if (!clusters_.contains(launcher)) {
    violations.push_back(
        {"resources.launcher",
         absl::StrCat("resources.launcher is \"", launcher,
                      "\", and this coordinator was not told of it: tesserad takes --", launcher)});
  }
  if (!spec.resources().device_model().empty()) {
    violations.push_back(
        {"resources.device_model",
         absl::StrCat("resources.device_model is \"", spec.resources().device_model(),
                      "\", must be empty with resources.launcher ", launcher,
                      ": its devices are those that tesserad was told to ask for")});
  }
  if (spec.memory().on_oom() == "replan") {
    violations.push_back(
        {"memory.on_oom", absl::StrCat("memory.on_oom is \"replan\", which resources.launcher ",
                                       launcher, " has no agent for between attempts")});
  }
  return violations.empty() ? absl::OkStatus() : invalid_request(violations);
}

JobRecord* Launches::record_of(const std::string& name) {
  const auto watched = watched_.find(name);
  if (watched == watched_.end()) return nullptr;
  const auto record = jobs_.all().find(watched->second.number);
  if (record == jobs_.all().end() || record->second->allocation().name() != name) return nullptr;
  return record->second.get();
}

absl::Status Launches::admit(const v1::Hello& hello) {
  const auto denied = [](const std::string& why) {
    return error(absl::StatusCode::kPermissionDenied, "NOT_ALLOCATED", why);
  };
  if (hello.allocation().empty()) {
    // Else an agent that was let in for one job could take others.
    if (!absl::StartsWith(hello.node(), prefix_)) return absl::OkStatus();
    return denied(
        absl::StrCat("node names that begin with ", prefix_, " are those of allocations"));
  }
  JobRecord* record = record_of(hello.allocation());
  if (record == nullptr) {
    return denied(absl::StrCat("no job wants the allocation ", hello.allocation()));
  }
  Allocation& allocation = *record->mutable_allocation();
  int index = 0;
  while (index < allocation.num_nodes() &&
         node_of_allocation(allocation.name(), index) != hello.node()) {
    ++index;
  }
  if (index == allocation.num_nodes()) {
    return denied(absl::StrCat("node ", hello.node(), " is none of the allocation ",
                               allocation.name(), ", which has ", allocation.num_nodes()));
  }
  // That it has its machines is known sooner than by the next question.
  if (const auto cluster = clusters_.find(allocation.launcher()); cluster != clusters_.end()) {
    cluster->second.next_question = clock_.uptime();
  }
  if (allocation.id().empty()) {
    // The cluster's answer to the submission is on its way, or lost.
    allocation.set_id(hello.allocation_id());
    jobs_.touch(*record);
  } else if (allocation.id() != hello.allocation_id()) {
    return denied(absl::StrCat("the allocation ", allocation.name(), " is ", allocation.id(),
                               ", not ", hello.allocation_id()));
  }
  return absl::OkStatus();
}

void Launches::closed(const std::string& node) {
  const auto found = nodes_.all().find(node);
  if (found == nodes_.all().end()) return;
  const std::string& allocation = found->second.info.allocation();
  if (!allocation.empty() && record_of(allocation) == nullptr) nodes_.forget(node);
}

bool Launches::wants_allocation(const JobRecord& record) const {
  const v1::Job::State state = record.job().state();
  return record.has_gang() || state == v1::Job::QUEUED;
}

void Launches::sync(const std::vector<JobRecord*>& changed) {
  drop_evicted();
  for (JobRecord* record : changed) {
    if (!is_launched(record->job().spec())) continue;
    if (is_terminal(record->job().state())) {
      numbers_.erase(record->number());
    } else {
      numbers_.insert(record->number());
    }
    if (record->has_allocation() && !wants_allocation(*record)) {
      drop(*record, absl::StrCat("the job is ", std::string(state_name(record->job().state()))));
    }
  }
}

void Launches::explain(JobRecord& record, const std::string& reason) {
  if (record.job().state() != v1::Job::QUEUED || record.job().reason() == reason) return;
  record.mutable_job()->set_reason(reason);
  jobs_.touch(record);
}

std::map<std::string, int> Launches::devices_asked_for() const {
  std::map<std::string, int> devices;
  for (const auto& [name, watched] : watched_) {
    const JobRecord& record = *jobs_.all().at(watched.number);
    if (record.has_gang()) continue;  // it holds them
    const v1::JobSpec& spec = record.job().spec();
    devices[spec.project()] += spec.parallelism().num_processes();
  }
  return devices;
}

void Launches::allocate(JobRecord& record, const FairShare& shares, int asked_for) {
  const v1::JobSpec& spec = record.job().spec();
  const std::string& kind = spec.resources().launcher();
  const auto cluster = clusters_.find(kind);
  if (cluster == clusters_.end()) {
    return explain(record, absl::StrCat("waits for a tesserad that was told of ", kind));
  }
  if (clock_.uptime() < gangs_.not_before(record)) {
    return explain(record, "waits a while after a failed attempt");
  }
  const int wanted = spec.parallelism().num_processes();
  if (wanted > shares.left(spec.project()) - asked_for) {
    return explain(record,
                   absl::StrCat("needs ", wanted, " devices; project ", spec.project(),
                                " holds or asked for ", shares.held(spec.project()) + asked_for,
                                " and may hold ", *shares.policy(spec.project()).max_devices));
  }
  const int per_node = std::min(wanted, cluster->second.launcher->max_devices_per_node());
  record.set_num_allocations(record.num_allocations() + 1);
  Allocation& allocation = *record.mutable_allocation();
  allocation.Clear();
  allocation.set_launcher(kind);
  allocation.set_name(absl::StrCat(prefix_, record.number(), "-", record.num_allocations()));
  allocation.set_devices_per_node(per_node);
  allocation.set_num_nodes(divide_up(wanted, per_node));
  jobs_.touch(record);
  watched_[allocation.name()].number = record.number();
  explain(record, absl::StrCat("is submitted to ", kind, " as ", allocation.name()));
  submit(allocation.name());
}

LaunchRequest Launches::request_of(const JobRecord& record) const {
  const v1::JobSpec& spec = record.job().spec();
  const Allocation& allocation = record.allocation();
  LaunchRequest request{.name = allocation.name(),
                        .job_id = record.job().id(),
                        .min_nodes = allocation.num_nodes(),
                        .max_nodes = allocation.num_nodes(),
                        .devices_per_node = allocation.devices_per_node(),
                        .device = spec.resources().device()};
  request.min_nodes = divide_up(spec::process_counts(spec).back(), allocation.devices_per_node());
  const absl::Duration left = time_limit(record) - gangs_.run_time(record);
  request.time_limit = left + grace_period(record) + kStopSlack + kJoinSlack;
  return request;
}

// Once the name is stored.
void Launches::submit(const std::string& name) {
  JobRecord* record = record_of(name);
  const auto cluster = clusters_.find(record->allocation().launcher());
  if (cluster == clusters_.end()) return;
  watched_[name].is_called = true;
  after_commit_([this, name, launcher = cluster->second.launcher, request = request_of(*record)] {
    launcher->submit(request,
                     [this, name](absl::StatusOr<std::string> id) { submitted(name, id); });
  });
}

void Launches::submitted(const std::string& name, const absl::StatusOr<std::string>& id) {
  JobRecord* record = record_of(name);
  // Nobody wants it any more: it will be found, and removed.
  if (record == nullptr) return;
  Watched& watched = watched_[name];
  const std::string kind = record->allocation().launcher();
  watched.is_called = false;
  if (id.ok()) {
    spdlog::info("job {}: {} is {} job {}", record->job().id(), name, kind, *id);
    // Agents may have told it before.
    if (record->allocation().id().empty()) record->mutable_allocation()->set_id(*id);
    jobs_.log(*record, v1::LogLine::INFO, absl::StrCat("submitted as ", kind, " job ", *id));
    explain(*record, absl::StrCat("waits for ", kind, " job ", *id));
    return;
  }
  const std::string why(id.status().message());
  if (!absl::IsFailedPrecondition(id.status())) {
    spdlog::warn("job {}: {} is not known to be submitted: {}", record->job().id(), name, why);
    watched.submit_pause = std::clamp(2 * watched.submit_pause, kMinSubmitPause, kMaxSubmitPause);
    watched.next_submit = clock_.uptime() + watched.submit_pause;
    return explain(*record, absl::StrCat("waits for ", kind, " to take it: ", why));
  }
  drop(*record, "it was refused");
  if (record->job().state() != v1::Job::QUEUED) return;
  const v1::Failure failure =
      make_failure(v1::Failure::USER, absl::StrCat(kind, " refuses the job: ", why));
  jobs_.transition(*record, v1::Job::FAILED, failure.message(), &failure);
}

void Launches::tick(const FairShare& shares) {
  const absl::Duration now = clock_.uptime();
  for (auto& [kind, cluster] : clusters_) {
    if (!cluster.is_asked && now >= cluster.next_question) ask(cluster);
  }
  std::erase_if(leaving_, [&](const auto& entry) { return entry.second < now; });
  drop_evicted();
  for (const int64_t number : std::set(numbers_)) {
    JobRecord& record = *jobs_.all().at(number);
    if (!record.has_allocation()) {
      if (record.job().state() == v1::Job::QUEUED) {
        allocate(record, shares, devices_asked_for()[record.job().spec().project()]);
      }
      continue;
    }
    const std::string name = record.allocation().name();
    Watched& watched = watched_[name];
    if (record.allocation().id().empty() && !watched.is_called && now >= watched.next_submit) {
      submit(name);
    }
    check_agents(watched, record);
  }
  start();
}

void Launches::ask(Cluster& cluster) {
  cluster.is_asked = true;
  cluster.next_question = clock_.uptime() + options_.poll;
  // Of this, or of what was made anew in its place after an outage of the store.
  const std::string kind = cluster.launcher->kind();
  cluster.launcher->list([this, kind](absl::StatusOr<std::vector<ClusterJob>> jobs) {
    Cluster& cluster = clusters_.at(kind);
    cluster.is_asked = false;
    listed(cluster, jobs);
  });
}

void Launches::listed(Cluster& cluster, const absl::StatusOr<std::vector<ClusterJob>>& jobs) {
  const std::string trouble(jobs.status().message());
  if (trouble != cluster.trouble && !trouble.empty()) {
    spdlog::warn("{} does not tell of its jobs: {}", cluster.launcher->kind(), trouble);
  }
  cluster.trouble = trouble;
  if (!jobs.ok()) return;
  std::map<std::string, const ClusterJob*> by_name;
  for (const ClusterJob& job : *jobs) {
    const JobRecord* record = record_of(job.name);
    const std::string id = record == nullptr ? "" : record->allocation().id();
    // Were there two of a name, the one that counts is the stored one, else the first.
    if (record != nullptr && (id.empty() || id == job.id) && !by_name.contains(job.name)) {
      by_name[job.name] = &job;
    } else {
      remove_unwanted(cluster, job);
    }
  }
  std::erase_if(cleared_, [&](const std::string& id) {
    return std::none_of(jobs->begin(), jobs->end(),
                        [&](const ClusterJob& job) { return job.id == id; });
  });
  for (const auto& [name, watched] : std::map(watched_)) {
    const JobRecord* record = record_of(name);
    if (record == nullptr || record->allocation().launcher() != cluster.launcher->kind()) continue;
    const auto found = by_name.find(name);
    seen(watched_[name], name, found == by_name.end() ? nullptr : found->second);
  }
}

void Launches::seen(Watched& watched, const std::string& name, const ClusterJob* job) {
  JobRecord& record = *record_of(name);
  Allocation& allocation = *record.mutable_allocation();
  if (watched.is_called) return;
  if (job == nullptr) {
    if (allocation.id().empty()) return;  // it will be submitted again
    watched.seen = {.name = name,
                    .id = allocation.id(),
                    .state = ClusterJob::State::kEnded,
                    .reason = "unknown to the cluster"};
  } else {
    watched.seen = *job;
  }
  if (watched.seen->state == ClusterJob::State::kEnded) return lost(name, *watched.seen);
  // It is submitted again: what goes with it may be missing.
  if (allocation.id().empty()) return;
  if (job->state == ClusterJob::State::kRunning && job->num_nodes > 0 &&
      job->num_nodes < allocation.num_nodes()) {
    allocation.set_num_nodes(job->num_nodes);
    jobs_.touch(record);
  }
  if (!allocation.used()) {
    explain(record,
            absl::StrCat("waits for ", called(allocation.launcher(), *job), ": ", job->reason));
  }
}

void Launches::remove_unwanted(Cluster& cluster, const ClusterJob& job) {
  if (cleared_.contains(job.id)) return;
  const bool ended = job.state == ClusterJob::State::kEnded;
  const bool is_leaving = job.state == ClusterJob::State::kEnding ||
                          (leaving_.contains(job.name) && job.state == ClusterJob::State::kRunning);
  if (!ended && is_leaving) return;
  cluster.launcher->remove(job, [this, ended, job](const absl::Status& status) {
    if (status.ok() && ended) cleared_.insert(job.id);
    if (!status.ok())
      spdlog::warn("{} is not removed: {}", job.name, std::string(status.message()));
  });
}

void Launches::lost(const std::string& name, const ClusterJob& job) {
  JobRecord& record = *record_of(name);
  const std::string kind = record.allocation().launcher();
  const std::string why = absl::StrCat(called(kind, job), " ended: ", job.reason);
  if (!record.has_gang()) {
    // Where an attempt ran on it, that was counted when the attempt failed.
    const bool counts = !record.allocation().used();
    jobs_.log(record, v1::LogLine::WARNING, why);
    drop(record, why);
    if (counts) gangs_.count_restart(record, make_failure(v1::Failure::DEVICE, why));
    return;
  }
  gangs_.break_up(record, make_failure(v1::Failure::DEVICE, why));
  // What the agents themselves say ends it; what they cannot say any more, the cluster may know.
  watched_[name].is_called = true;
  clusters_.at(kind).launcher->is_gone(job, [this, name, why](absl::StatusOr<bool> gone) {
    const auto watched = watched_.find(name);
    if (watched == watched_.end()) return;
    watched->second.is_called = false;
    JobRecord* record = record_of(name);
    if (record == nullptr || !gone.ok() || !*gone || !record->has_gang()) return;
    // Giving up the last of them ends the gang.
    const Gang gang = record->gang();
    for (const GangNode& node : gang.nodes()) gangs_.give_up(node.name(), why);
  });
}

std::vector<const Node*> Launches::agents(const Allocation& allocation) const {
  std::vector<const Node*> agents;
  for (int index = 0; index < allocation.num_nodes(); ++index) {
    const auto node = nodes_.all().find(node_of_allocation(allocation.name(), index));
    if (node == nodes_.all().end()) continue;
    const Node& state = node->second;
    if (state.link != nullptr && !state.lost && state.info.allocation_id() == allocation.id()) {
      agents.push_back(&state);
    }
  }
  return agents;
}

void Launches::check_agents(Watched& watched, JobRecord& record) {
  const Allocation& allocation = record.allocation();
  const bool runs = watched.seen && watched.seen->state == ClusterJob::State::kRunning;
  const size_t present = agents(allocation).size();
  if (!runs || record.has_gang() || present == static_cast<size_t>(allocation.num_nodes())) {
    watched.incomplete_since.reset();
    return;
  }
  if (!watched.incomplete_since) watched.incomplete_since = clock_.uptime();
  if (clock_.uptime() - *watched.incomplete_since < options_.join_timeout) return;
  const std::string why =
      absl::StrCat(present, " of ", allocation.num_nodes(), " agents of ",
                   called(allocation.launcher(), *watched.seen), " are there ",
                   absl::FormatDuration(options_.join_timeout), " after it has its machines");
  const bool counts = !allocation.used();
  jobs_.log(record, v1::LogLine::WARNING, why);
  drop(record, why);
  if (counts) gangs_.count_restart(record, make_failure(v1::Failure::NETWORK, why));
}

void Launches::start() {
  for (const int64_t number : std::set(numbers_)) {
    JobRecord& record = *jobs_.all().at(number);
    if (!record.has_allocation() || record.job().state() != v1::Job::QUEUED ||
        clock_.uptime() < gangs_.not_before(record)) {
      continue;
    }
    const Allocation& allocation = record.allocation();
    // How many machines it has is known once the cluster says that it runs.
    const auto watched = watched_.find(allocation.name());
    if (watched == watched_.end() || !watched->second.seen ||
        watched->second.seen->state != ClusterJob::State::kRunning) {
      continue;
    }
    const std::vector<const Node*> agents = this->agents(allocation);
    if (agents.empty() || agents.size() < static_cast<size_t>(allocation.num_nodes())) continue;
    std::vector<Spot> spots;
    for (const Node* agent : agents) {
      for (const v1::Device& device : agent->info.devices()) {
        if (device.kind() != record.job().spec().resources().device()) continue;
        spots.push_back({agent->info.node(), device.index()});
      }
    }
    const std::vector<int> counts = spec::process_counts(record.job().spec());
    const auto count = std::find_if(counts.begin(), counts.end(), [&](int wanted) {
      return static_cast<size_t>(wanted) <= spots.size();
    });
    if (count == counts.end()) {
      const std::string why = absl::StrCat(
          "the agents of ", allocation.name(), " have ", spots.size(), " ",
          record.job().spec().resources().device(), " devices; the job needs ", counts.back());
      drop(record, why);
      gangs_.count_restart(record, make_failure(v1::Failure::DEVICE, why));
      continue;
    }
    spots.resize(static_cast<size_t>(*count));
    record.mutable_allocation()->set_used(true);
    gangs_.launch(record, spots);
  }
}

}  // namespace tessera::server
