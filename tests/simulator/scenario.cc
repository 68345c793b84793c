#include "tests/simulator/scenario.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/jobs/state.h"
#include "tests/simulator/coordinator.h"
#include "tests/simulator/machine.h"

namespace tessera::server::simulator {
namespace {

constexpr absl::Duration kFaults = absl::Minutes(30);  // and then all is mended
constexpr absl::Duration kEnd = absl::Hours(12);
constexpr absl::Duration kPatience = absl::Seconds(70);  // of a client for an answer

ControlOptions options() {
  ControlOptions options;
  options.lease = {.lease = absl::Seconds(10), .fence = absl::Seconds(60)};
  options.fair_share_half_life = absl::Minutes(10);
  return options;
}

class Scenario {
 public:
  Scenario(uint64_t seed, bool verbose)
      : world_(seed), training_(world_), coordinator_(world_, options()) {
    world_.verbose = verbose;
  }

  Report run();

 private:
  void make_machines();
  void make_projects();
  void make_jobs();
  v1::JobSpec make_spec(int number);
  void submit(const v1::JobSpec& spec, const std::string& request);
  void ask_for_changes();
  void strike();
  void cut(Machine& machine);
  void mend();
  bool all_ended() const;
  void check_end() const;

  World world_;
  Training training_;
  Coordinator coordinator_;
  std::vector<std::unique_ptr<Machine>> machines_;
  int num_devices_ = 0;
  int num_jobs_ = 0;
  // Requests that were answered: with a job's id, or with a refusal.
  std::map<std::string, std::string> answered_;
  bool mended_ = false;
};

void Scenario::make_machines() {
  const int count = static_cast<int>(world_.between(1, 5));
  for (int i = 0; i < count; ++i) {
    v1::Hello hello;
    hello.set_node(absl::StrCat("n", i));
    hello.set_address("127.0.0.1");
    if (world_.chance(0.5)) hello.set_rack(absl::StrCat("r", i % 2));
    const int devices = static_cast<int>(world_.between(1, 4));
    for (int d = 0; d < devices; ++d) {
      v1::Device& device = *hello.add_devices();
      device.set_index(d);
      device.set_kind("cpu");
    }
    num_devices_ += devices;
    machines_.push_back(
        std::make_unique<Machine>(world_, training_, hello, [this](Machine& machine) {
          return coordinator_.accept(
              machine.wire,
              [&machine](const v1::SessionResponse& message) { machine.get(message); },
              [&machine](const absl::Status& status) { machine.closed(status); });
        }));
    world_.after(world_.between(absl::ZeroDuration(), absl::Minutes(1)),
                 [machine = machines_.back().get()] { machine->start_agent(); });
  }
}

void Scenario::make_projects() {
  for (const char* name : {"a", "b"}) {
    if (world_.chance(0.5)) continue;
    v1::Project project;
    project.set_name(name);
    project.set_weight(static_cast<double>(world_.between(1, 4)));
    if (world_.chance(0.5)) {
      project.set_max_devices(static_cast<int>(world_.between(1, num_devices_)));
      coordinator_.quotas[name] = project.max_devices();
    }
    coordinator_.post([project](Control& control) {
      if (!control.set_project(project).ok()) throw Violation("a project was refused");
    });
  }
}

v1::JobSpec Scenario::make_spec(int number) {
  v1::JobSpec spec;
  spec.set_name(absl::StrCat("j", number));
  spec.set_project(world_.chance(0.5) ? "a" : world_.chance(0.5) ? "b" : "c");
  spec.mutable_method()->mutable_sft();
  spec.mutable_model()->set_path("/models/m");
  spec.mutable_data()->add_train("/data/train.jsonl");
  spec.mutable_training()->set_output_dir("/out");
  const auto quota = coordinator_.quotas.find(spec.project());
  const int most =
      quota == coordinator_.quotas.end() ? num_devices_ : std::min(num_devices_, quota->second);
  const int ranks = static_cast<int>(world_.between(1, most));
  spec.mutable_parallelism()->set_num_processes(ranks);
  if (ranks > 1 && world_.chance(0.4)) spec.mutable_parallelism()->set_min_num_processes(1);
  v1::Resources& resources = *spec.mutable_resources();
  resources.set_priority(static_cast<int>(world_.between(0, 2)));
  resources.set_max_restarts(world_.chance(0.1) ? 1 : 1000);
  resources.set_preemptible(world_.chance(0.8));
  resources.mutable_grace_period()->set_seconds(world_.between(1, 30));
  if (world_.chance(0.3)) resources.mutable_time_limit()->set_seconds(world_.between(20, 1200));
  if (world_.chance(0.1)) resources.mutable_deadline()->set_seconds(world_.between(60, 3600));
  Course course{.steps = static_cast<int>(world_.between(1, 60)),
                .save_steps = static_cast<int>(world_.between(1, 10)),
                .step_time = world_.between(absl::Milliseconds(500), absl::Seconds(8))};
  training_.add_job(spec.name(), course);
  return spec;
}

void Scenario::make_jobs() {
  num_jobs_ = static_cast<int>(world_.between(2, 12));
  for (int i = 0; i < num_jobs_; ++i) {
    const v1::JobSpec spec = make_spec(i);
    world_.after(world_.between(absl::ZeroDuration(), kFaults / 2),
                 [this, spec, i] { submit(spec, absl::StrCat("request-", i)); });
  }
}

// Again and again, with the same request id, until there is an answer.
void Scenario::submit(const v1::JobSpec& spec, const std::string& request_id) {
  if (answered_.contains(request_id)) return;
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(request_id);
  world_.after(world_.between(absl::ZeroDuration(), absl::Milliseconds(50)), [this, request] {
    coordinator_.post([this, request](Control& control) {
      control.submit(request, [this, request](const absl::StatusOr<v1::Job>& job) {
        coordinator_.check_speaks();
        if (absl::IsUnavailable(job.status()) || world_.chance(0.05)) return;  // it was lost
        if (!job.ok() && !absl::IsInvalidArgument(job.status())) {
          throw Violation(absl::StrCat("a submission failed: ", job.status().message()));
        }
        const auto [known, is_new] =
            answered_.try_emplace(request.request_id(), job.ok() ? job->id() : "");
        // One that was refused may be taken once there are more nodes.
        if (!is_new && job.ok() && !known->second.empty() && known->second != job->id()) {
          throw Violation(absl::StrCat(request.request_id(), " made two jobs"));
        }
      });
    });
  });
  world_.after(world_.between(absl::Seconds(5), kPatience),
               [this, spec, request_id] { submit(spec, request_id); });
}

void Scenario::ask_for_changes() {
  if (mended_) return;
  std::vector<std::string> ids;
  for (const auto& [id, job] : coordinator_.jobs()) ids.push_back(id);
  if (!ids.empty()) {
    const std::string id = ids[static_cast<size_t>(world_.between(0, std::ssize(ids) - 1))];
    const int64_t what = world_.between(0, 9);
    const auto ignore = [](const absl::StatusOr<v1::Job>&) {};
    coordinator_.post([id, what, ignore](Control& control) {
      if (what == 0) return control.cancel(id, ignore);
      return what < 5 ? control.suspend(id, ignore) : control.resume(id, ignore);
    });
  }
  world_.after(world_.between(absl::Seconds(20), absl::Minutes(5)), [this] { ask_for_changes(); });
}

void Scenario::cut(Machine& machine) {
  machine.wire.to_server = world_.chance(0.3);
  machine.wire.to_agent = !machine.wire.to_server && world_.chance(0.3);
  const absl::Duration length = world_.chance(0.7)
                                    ? world_.between(absl::Seconds(1), absl::Seconds(40))
                                    : world_.between(absl::Seconds(40), absl::Minutes(10));
  world_.tell(
      absl::StrCat("the way to ", machine.name(), " is cut for ", absl::FormatDuration(length)));
  world_.after(length, [&machine] { machine.wire = {}; });
}

void Scenario::strike() {
  if (mended_) return;
  Machine& machine = *machines_[static_cast<size_t>(world_.between(0, std::ssize(machines_) - 1))];
  const absl::Duration away = world_.chance(0.8)
                                  ? world_.between(absl::Milliseconds(50), absl::Seconds(40))
                                  : world_.between(absl::Seconds(40), absl::Minutes(10));
  switch (world_.between(0, 6)) {
    case 0:
    case 1: {
      const auto moment = static_cast<Coordinator::Moment>(world_.between(0, 3));
      const bool power = world_.chance(0.5);
      coordinator_.crash(moment, power ? Coordinator::Loss::kPower : Coordinator::Loss::kProcess,
                         away);
      break;
    }
    case 2:
      machine.crash_agent();
      world_.after(away, [&machine] { machine.start_agent(); });
      break;
    case 3:
      machine.power_off();
      world_.after(away * 3, [&machine] { machine.start_agent(); });
      break;
    case 4:
      machine.break_session(away);
      break;
    case 5:
      cut(machine);
      break;
    default:
      if (const auto rank = training_.any()) training_.kill(rank, "chance struck it");
  }
  world_.after(world_.between(absl::Seconds(1), absl::Minutes(3)), [this] { strike(); });
}

void Scenario::mend() {
  mended_ = true;
  world_.tell("all is mended");
  coordinator_.start();
  for (const auto& machine : machines_) {
    machine->wire = {};
    machine->start_agent();
  }
  const auto resume = [this] {
    for (const auto& [id, job] : coordinator_.jobs()) {
      if (is_terminal(job.state())) continue;
      coordinator_.post([id = id](Control& control) {
        control.resume(id, [](const absl::StatusOr<v1::Job>&) {});
      });
    }
  };
  resume();
  // Where one is being suspended just now, or the coordinator crashed in its last round.
  world_.after(absl::Minutes(5), [this, resume] {
    coordinator_.start();
    resume();
  });
}

bool Scenario::all_ended() const {
  if (!mended_ || static_cast<int>(answered_.size()) < num_jobs_) return false;
  return std::all_of(coordinator_.jobs().begin(), coordinator_.jobs().end(),
                     [](const auto& entry) { return is_terminal(entry.second.state()); });
}

void Scenario::check_end() const {
  if (!all_ended()) {
    std::string left = absl::StrCat(answered_.size(), " of ", num_jobs_, " answered");
    for (const auto& [id, job] : coordinator_.jobs()) {
      if (is_terminal(job.state())) continue;
      absl::StrAppend(&left, "; ", id, " is ", std::string(state_name(job.state())), ": ",
                      job.reason());
    }
    throw Violation(absl::StrCat("not all jobs end: ", left));
  }
  for (const auto& [request, id] : answered_) {
    if (!id.empty() && !coordinator_.jobs().contains(id)) {
      throw Violation(absl::StrCat("job ", id, " was acknowledged and is lost"));
    }
  }
}

Report Scenario::run() {
  coordinator_.start();
  make_machines();
  make_projects();
  make_jobs();
  world_.after(absl::Minutes(2), [this] { ask_for_changes(); });
  coordinator_.is_quiet = world_.chance(0.1);
  if (!coordinator_.is_quiet) world_.after(absl::Seconds(30), [this] { strike(); });
  world_.after(kFaults, [this] { mend(); });
  world_.run(kEnd, [this] { return all_ended(); });
  check_end();
  Report report{.simulated = world_.now(),
                .num_events = world_.num_events(),
                .num_jobs = num_jobs_,
                .num_crashes = static_cast<int>(coordinator_.num_crashes()),
                .num_power_losses = static_cast<int>(coordinator_.num_power_losses()),
                .num_kept_commits = static_cast<int>(coordinator_.num_kept_commits()),
                .num_lost_commits = static_cast<int>(coordinator_.num_lost_commits()),
                .num_shrunk = static_cast<int>(coordinator_.num_shrunk())};
  for (const auto& [id, job] : coordinator_.jobs()) {
    report.num_attempts += job.attempt();
    report.num_preemptions += job.preemptions();
    const bool succeeded = job.state() == v1::Job::SUCCEEDED;
    if (succeeded && !training_.course(id).ended) {
      throw Violation(absl::StrCat("job ", id, " SUCCEEDED, and no attempt came to its end"));
    }
  }
  return report;
}

}  // namespace

Report run_scenario(uint64_t seed, bool verbose) { return Scenario(seed, verbose).run(); }

}  // namespace tessera::server::simulator
