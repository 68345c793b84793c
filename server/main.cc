// tesserad: wiring only.
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/spec/redact.h"
#include "proto/spec/redacting_log.h"
#include "server/agents/control.h"
#include "server/agents/lasting_control.h"
#include "server/flags.h"
#include "server/jobs/control_loop.h"
#include "server/jobs/errors.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/store.h"
#include "server/launchers/launcher_flags.h"
#include "server/listening.h"
#include "server/rpc/agent_service.h"
#include "server/rpc/coordinator_service.h"
#include "server/rpc/server.h"
#include "server/rpc/watch.h"
#include "server/security/access_service.h"
#include "server/security/guarded_coordinator.h"
#include "server/security/private_file.h"
#include "server/security/security.h"
#include "server/standby.h"
#include "server/state_dir.h"
#include "server/telemetry/histories.h"
#include "server/telemetry/series.h"
#include "server/telemetry/service_metrics.h"
#include "server/web/event_streams.h"
#include "server/web/http_server.h"

namespace tessera::server {
namespace {

// Calls that run when the process is asked to stop get this long to end.
constexpr absl::Duration kShutdownGrace = absl::Seconds(2);
constexpr absl::Duration kMaxTick = absl::Milliseconds(250);
// How long HTTP waits for the control loop, and for an agent that reads documents.
constexpr std::chrono::seconds kPageTimeout{5};
constexpr std::chrono::minutes kLengthsTimeout{2};
// Events of a job that its metrics are made of after a restart.
constexpr int kMaxReplayedEvents = 1000;

std::vector<v1::Node> nodes_now(ControlLoop& loop, const Control& control) {
  auto promise = std::make_shared<std::promise<std::vector<v1::Node>>>();
  auto future = promise->get_future();
  loop.post([promise = std::move(promise), &control] { promise->set_value(control.nodes()); });
  if (future.wait_for(kPageTimeout) != std::future_status::ready) {
    throw std::runtime_error("the control loop is busy");
  }
  return future.get();
}

absl::StatusOr<v1::DataProfile> profile_now(ControlLoop& loop, Control& control,
                                            v1::InspectRequest request) {
  using Answer = absl::StatusOr<v1::DataProfile>;
  auto promise = std::make_shared<std::promise<Answer>>();
  auto future = promise->get_future();
  loop.post([promise, &control, request = std::move(request)]() mutable {
    control.profile(std::move(request),
                    [promise](Answer answer) { promise->set_value(std::move(answer)); });
  });
  if (future.wait_for(kLengthsTimeout) != std::future_status::ready) {
    return absl::DeadlineExceededError("no agent read the documents in time");
  }
  return future.get();
}

ApiSources api_sources(const Gate& gate, ControlLoop& loop, Control& control, Reader& reader,
                       Histories& histories, EventStreams& streams) {
  return {.gate = gate,
          .reader = reader,
          .histories = histories,
          .streams = streams,
          .nodes = [&] { return nodes_now(loop, control); },
          .profile =
              [&](v1::InspectRequest request) {
                return profile_now(loop, control, std::move(request));
              }};
}

MetricsSources metrics_sources(ControlLoop& loop, const Control& control, Reader& reader,
                               Telemetry& telemetry, EventStreams& streams,
                               const RpcMetrics& metrics, const ServiceMetrics& service_metrics) {
  MetricsSources sources;
  sources.overview = [&] {
    Overview overview;
    overview.jobs_by_state = reader([](Queries& queries) { return queries.count_by_state(); });
    overview.nodes = nodes_now(loop, control);
    overview.jobs = telemetry.recent();
    overview.oldest_queued = telemetry.oldest_queued();
    overview.service = service_metrics.collect();
    overview.num_event_streams = streams.num_open();
    return overview;
  };
  sources.rpc_metrics = [&] { return metrics.collect(); };
  return sources;
}

Gate::FindJob find_job(Reader& reader) {
  return [&reader](const std::string& name) -> absl::StatusOr<Gate::JobPlace> {
    try {
      const auto record = reader([&](Queries& queries) { return queries.find(name); });
      if (!record.ok()) return record.status();
      return Gate::JobPlace{record->job().id(), record->job().spec().project()};
    } catch (const DatabaseError& failure) {
      return to_status(failure);
    }
  };
}

// Listens, and tells in STATE_DIR/grpc.port which port it is where there is one.
absl::StatusOr<std::unique_ptr<grpc::Server>> start_grpc(
    const Flags& flags, const StateDir& state_dir, const Security& security,
    const std::vector<grpc::Service*>& services) {
  const absl::Status complete =
      check_policy({v1::Coordinator::service_full_name(), v1::AgentService::service_full_name(),
                    v1::Access::service_full_name()});
  if (!complete.ok()) return complete;
  std::vector<Listener> listeners;
  for (const std::string& address : flags.addresses(state_dir)) {
    listeners.push_back({address, security.listener(address)});
  }
  auto server = serve(listeners, services);
  if (!server.ok()) return server;
  if (absl::Status status = publish_port(state_dir, listeners); !status.ok()) return status;
  return server;
}

// Of the jobs that the coordinator before this one had.
void restore(Telemetry& telemetry, const JobTable& jobs, Queries& queries) {
  for (const auto& [number, record] : jobs.all()) {
    std::vector<v1::Event> events;
    if (record->job().attempt() > 0) events = queries.last_events(number, kMaxReplayedEvents);
    telemetry.restore(record->job(), events);
  }
}

void wait_for(const sigset_t& signals) {
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("{}: shutting down; jobs go on under their agents", strsignal(signal));
}

// What was committed, to all who show it.
Control::Observer tell_all(Telemetry& telemetry, ServiceMetrics& service_metrics, WatchHub& watches,
                           EventStreams& streams) {
  return [&](const std::vector<JobChange>& changes) {
    telemetry.record(changes);
    service_metrics.record(changes);
    watches.notify(changes);
    streams.notify(changes);
  };
}

// What Slurm's programs are to see of this process's environment: nothing that is none of their
// business.
std::vector<std::string> slurm_environment() {
  std::vector<std::string> environment;
  for (const char* name : {"PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF"}) {
    const char* value = std::getenv(name);
    if (value != nullptr) environment.push_back(absl::StrCat(name, "=", value));
  }
  return environment;
}

absl::StatusOr<std::vector<std::shared_ptr<LaunchThread>>> start_launchers(
    const Flags& flags, const std::string& owner, const StateDir& state_dir, Security& security,
    ControlLoop& loop) {
  auto launchers = make_launchers(flags.launchers, owner, state_dir, security, slurm_environment());
  if (!launchers.ok()) return launchers.status();
  std::vector<std::shared_ptr<LaunchThread>> threads;
  for (auto& launcher : *launchers) {
    threads.push_back(std::make_shared<LaunchThread>(
        std::move(launcher), [&loop](ControlLoop::Task answer) { loop.post(std::move(answer)); }));
  }
  return threads;
}

// How a coordinator is what it is: alone, or by an epoch of several.
struct Office {
  Storage& storage;
  Tls& tls;
  // Throws where it may not answer any more.
  std::function<void()> check = [] {};
  // Where it cannot write: ends the process,
  std::function<void(const std::string&)> fail;
  // or, where that is absent, opens the store again once it can be written (LastingControl).
  LastingControl::OpenStore reopen;
};

void start_loop(ControlLoop& loop, absl::Duration period, LastingControl& lasting,
                Security& security, ServiceMetrics& metrics, const Office& office) {
  loop.start(
      period,
      [&] {
        lasting.tick();
        metrics.set_writable(lasting.control().outage().ok());
        security.tick();
      },
      [&] {
        metrics.time_round([&] { lasting.control().commit(); });
        office.check();
      },
      [&](const std::exception& failure) {
        if (office.fail) office.fail(failure.what());
        return lasting.failed(failure);
      });
}

absl::Status lead_until(const sigset_t& signals, const Flags& flags, const StateDir& state_dir,
                        const Clock& clock, const Office& office) {
  absl::StatusOr<std::unique_ptr<Store>> store = Store::open(office.storage);
  if (!store.ok()) return store.status();
  Reader reader(office.storage);
  Reader watch_reader(office.storage);
  auto security = Security::open(state_dir.path(), flags.security, office.storage, office.tls,
                                 clock, find_job(reader));
  if (!security.ok()) return security.status();
  Reader web_reader(office.storage);
  RpcMetrics metrics;
  WatchHub watches(watch_reader, clock, metrics);
  EventStreams streams(web_reader);
  Histories histories(web_reader, clock);
  Telemetry telemetry(clock);
  ServiceMetrics service_metrics(clock, flags.state_dir);
  ControlLoop loop;
  std::random_device random;
  ControlOptions options = flags.control;
  auto owner = launcher_owner(flags.launchers, state_dir, **store);
  if (!owner.ok()) return owner.status();
  options.launch.owner = *std::move(owner);
  auto launchers = start_launchers(flags, options.launch.owner, state_dir, **security, loop);
  if (!launchers.ok()) return launchers.status();
  const auto make_control = [&](std::optional<Control>& control, Store& from) {
    control.emplace(
        from, clock, options, [&random] { return random(); },
        [&loop](ControlLoop::Task effect) { loop.after_commit(std::move(effect)); },
        tell_all(telemetry, service_metrics, watches, streams));
    for (const auto& launcher : *launchers) control->add_launcher(launcher);
  };
  Queries& stored = (*store)->queries();
  LastingControl lasting(*std::move(store), office.reopen, make_control, clock);
  Control& control = lasting.control();
  restore(telemetry, control.jobs(), stored);
  start_loop(loop, std::min(kMaxTick, flags.control.lease.lease / 10), lasting, **security,
             service_metrics, office);

  const Gate& gate = (*security)->gate();
  CoordinatorService coordinator(loop, control, reader, watches, gate, clock, metrics);
  GuardedCoordinator guarded(coordinator, gate, metrics);
  AgentService agents(loop, control, gate, clock, metrics);
  AccessService access(**security, clock, metrics);
  const absl::Cleanup stop_loop = [&loop] { loop.stop(); };  // before what its tasks work on goes
  auto server = start_grpc(flags, state_dir, **security, {&guarded, &agents, &access});
  if (!server.ok()) return server.status();
  auto http = start_http(flags.http, state_dir, [&](HttpOptions options) {
    return HttpServer::start(
        std::move(options), api_sources(gate, loop, control, web_reader, histories, streams),
        metrics_sources(loop, control, web_reader, telemetry, streams, metrics, service_metrics));
  });
  if (!http.ok()) return http.status();

  wait_for(signals);
  loop.post([&control] { control.shut_down(); });  // answers who waits, HTTP's threads among them
  http->reset();
  watches.stop();
  (*server)->Shutdown(absl::ToChronoTime(absl::Now() + kShutdownGrace));
  return absl::OkStatus();
}

absl::Status serve_alone(const sigset_t& signals, const Flags& flags, const StateDir& state_dir,
                         const Clock& clock) {
  SqliteStorage storage(state_dir.path());
  auto tls = Tls::open(state_dir.path(), flags.tls, flags.addresses(state_dir), clock);
  if (!tls.ok()) return tls.status();
  const auto reopen = [&] {
    try_writing(state_dir.database());
    return Store::open(storage);
  };
  try {
    return lead_until(signals, flags, state_dir, clock,
                      {.storage = storage, .tls = **tls, .reopen = reopen});
  } catch (const DatabaseError& failure) {
    return to_status(failure);
  }
}

absl::StatusOr<PostgresAddress> store_address(const Flags& flags) {
  if (flags.store_password_file.empty()) return PostgresAddress::parse(flags.store, "");
  const auto text = read_private(flags.store_password_file);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--store-password-file: ", text.status().message()));
  }
  const std::string password(absl::StripTrailingAsciiWhitespace(*text));
  if (password.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--store-password-file ", flags.store_password_file, " is empty"));
  }
  return PostgresAddress::parse(flags.store, password);
}

// Ends this process and starts it anew: as a standby, which knows nothing of what it did.
[[noreturn]] void step_down(char** argv, const std::string& why) {
  spdlog::critical("stepping down: {}", why);
  std::error_code failure;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", failure);
  // Not all libraries that opened files have seen to it.
  ::close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  ::execv(program.c_str(), argv);
  std::_Exit(EXIT_FAILURE);
}

absl::Status serve_as_one_of_several(const sigset_t& signals, Flags flags,
                                     const StateDir& state_dir, const Clock& clock, char** argv) {
  auto address = store_address(flags);
  if (!address.ok()) return address.status();
  const auto fail = [argv](const std::string& why) { step_down(argv, why); };
  const StandbyOptions options{.database = *address,
                               .lease = flags.leader_lease,
                               .advertise = flags.advertise,
                               .addresses = flags.addresses(state_dir),
                               .http = flags.http,
                               .tls = flags.tls,
                               .check = [&](Election& election) {
                                 return check_launcher_owner(flags.launchers,
                                                             election.setting(kOwnerSetting));
                               }};
  auto lead = await_leadership(options, state_dir, clock, signals, fail);
  if (absl::IsCancelled(lead.status())) return absl::OkStatus();
  if (!lead.ok()) return lead.status();
  flags.listen = lead->addresses;
  PostgresStorage storage(*address, lead->leadership->epoch());
  absl::Status status;
  try {
    status = lead_until(signals, flags, state_dir, clock,
                        {.storage = storage,
                         .tls = *lead->tls,
                         .check = [&] { lead->leadership->check(); },
                         .fail = fail});
  } catch (const DatabaseError& failure) {
    fail(failure.what());
  }
  lead->leadership->release();
  return status;
}

absl::Status serve_until(const sigset_t& signals, const Flags& flags, char** argv) {
  absl::StatusOr<StateDir> state_dir = StateDir::open(flags.state_dir);
  if (!state_dir.ok()) return state_dir.status();
  const SystemClock clock;
  if (flags.store.empty()) return serve_alone(signals, flags, *state_dir, clock);
  return serve_as_one_of_several(signals, flags, *state_dir, clock, argv);
}

int run(int argc, char** argv) {
  CLI::App app{"Tessera's coordinator: owns jobs, their queue, and where they run."};
  Flags flags;
  app.set_version_flag("--version", TESSERA_VERSION);
  add_flags(app, flags);
  CLI11_PARSE(app, argc, argv);

  // Whatever this process makes is its user's alone: sockets, tokens, the specs of jobs.
  ::umask(0077);
  spdlog::set_default_logger(spdlog::stderr_color_mt("tesserad"));
  spdlog::set_formatter(std::make_unique<spec::RedactingFormatter>());
  // Who closes a connection early is told apart by the write's error.
  std::signal(SIGPIPE, SIG_IGN);
  // Before any thread, so that all of them leave the signals to sigwait.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const absl::Status status = serve_until(signals, flags, argv);
  if (status.ok()) return 0;
  const std::string why = spec::redact({status.message().data(), status.message().size()});
  std::fprintf(stderr, "tesserad: %s\n", why.c_str());
  return 1;
}

}  // namespace
}  // namespace tessera::server

int main(int argc, char** argv) {
  // It holds keys: no core dump, and no other process of its user looks into it.
  ::prctl(PR_SET_DUMPABLE, 0);
  return tessera::server::run(argc, argv);
}
