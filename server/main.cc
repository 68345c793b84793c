// tesserad: flags and wiring only.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/agents/control.h"
#include "server/jobs/control_loop.h"
#include "server/jobs/store.h"
#include "server/rpc/agent_service.h"
#include "server/rpc/coordinator_service.h"
#include "server/rpc/server.h"
#include "server/rpc/watch.h"
#include "server/state_dir.h"
#include "server/telemetry/series.h"
#include "server/web/http_server.h"

namespace tessera::server {
namespace {

// Calls that run when the process is asked to stop get this long to end.
constexpr absl::Duration kShutdownGrace = absl::Seconds(2);
constexpr absl::Duration kMaxTick = absl::Milliseconds(250);
// How long a page of HTTP waits for the control loop.
constexpr std::chrono::seconds kPageTimeout{5};
// Events of a job that its page is made of where memory has none.
constexpr int kMaxReplayedEvents = 1000;

struct Flags {
  std::string state_dir;
  std::vector<std::string> listen;
  std::string http = "127.0.0.1:0";
  ControlOptions control;
};

// A positive duration, as in 10s or 1m30s.
void add_duration(CLI::App& app, const std::string& name, absl::Duration& value,
                  const std::string& help) {
  const auto parse = [&value](const std::string& text) {
    return absl::ParseDuration(text, &value) && value > absl::ZeroDuration();
  };
  app.add_option_function<std::string>(
         name,
         [name, parse](const std::string& text) {
           if (!parse(text)) {
             throw CLI::ValidationError(name, "must be a duration above zero, as in 10s or 1m30s");
           }
         },
         help + " (default " + absl::FormatDuration(value) + ")")
      ->type_name("DURATION");
}

std::vector<v1::Node> nodes_now(ControlLoop& loop, const Control& control) {
  auto promise = std::make_shared<std::promise<std::vector<v1::Node>>>();
  auto future = promise->get_future();
  loop.post([promise = std::move(promise), &control] { promise->set_value(control.nodes()); });
  if (future.wait_for(kPageTimeout) != std::future_status::ready) {
    throw std::runtime_error("the control loop is busy");
  }
  return future.get();
}

WebSources web_sources(ControlLoop& loop, const Control& control, Reader& reader,
                       Telemetry& telemetry, const RpcMetrics& metrics) {
  WebSources sources;
  sources.overview = [&] {
    Overview overview;
    overview.jobs_by_state = reader([](Queries& queries) { return queries.count_by_state(); });
    overview.nodes = nodes_now(loop, control);
    overview.jobs = telemetry.recent();
    return overview;
  };
  sources.job = [&](const std::string& id) -> std::optional<JobSeries> {
    return reader([&](Queries& queries) -> std::optional<JobSeries> {
      const absl::StatusOr<JobRecord> record = queries.find(id);
      if (!record.ok()) return std::nullopt;
      JobSeries series{record->job()};
      for (const v1::Event& event : queries.last_events(record->number(), kMaxReplayedEvents)) {
        series.add(event);
      }
      return series;
    });
  };
  sources.rpc_metrics = [&] { return metrics.collect(); };
  return sources;
}

absl::Status serve_until(const sigset_t& signals, const Flags& flags) {
  absl::StatusOr<StateDir> state_dir = StateDir::open(flags.state_dir);
  if (!state_dir.ok()) return state_dir.status();
  absl::StatusOr<std::unique_ptr<Store>> store = Store::open(state_dir->database());
  if (!store.ok()) return store.status();

  const SystemClock clock;
  Reader reader(state_dir->database());
  Reader watch_reader(state_dir->database());
  RpcMetrics metrics;
  WatchHub watches(watch_reader, clock, metrics);
  Telemetry telemetry(clock);
  for (const JobRecord& record : (*store)->unfinished()) {
    telemetry.restore(record.job(),
                      (*store)->queries().last_events(record.number(), kMaxReplayedEvents));
  }
  ControlLoop loop;
  std::random_device random;
  Control control(
      **store, clock, flags.control, [&random] { return random(); },
      [&loop](ControlLoop::Task effect) { loop.after_commit(std::move(effect)); },
      [&](const std::vector<JobChange>& changes) {
        telemetry.record(changes);
        watches.notify(changes);
      });
  loop.start(
      std::min(kMaxTick, flags.control.lease.lease / 10), [&control] { control.tick(); },
      [&control] { control.commit(); });

  CoordinatorService coordinator(loop, control, reader, watches, clock, metrics);
  AgentService agents(loop, control, clock, metrics);
  std::vector<std::string> addresses = flags.listen;
  if (addresses.empty()) addresses.push_back(state_dir->socket_address());
  absl::StatusOr<std::unique_ptr<grpc::Server>> server = serve(addresses, {&coordinator, &agents});
  if (!server.ok()) return server.status();
  std::unique_ptr<HttpServer> http;
  if (!flags.http.empty()) {
    auto started =
        HttpServer::start(flags.http, web_sources(loop, control, reader, telemetry, metrics));
    if (!started.ok()) return started.status();
    http = *std::move(started);
    const absl::Status published =
        state_dir->publish("http.port", absl::StrCat(http->port(), "\n"));
    if (!published.ok()) return published;
  }

  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("{}: shutting down; jobs go on under their agents", strsignal(signal));
  http.reset();
  loop.post([&control] { control.shut_down(); });
  watches.stop();
  (*server)->Shutdown(absl::ToChronoTime(absl::Now() + kShutdownGrace));
  loop.stop();
  return absl::OkStatus();
}

int run(int argc, char** argv) {
  CLI::App app{"Tessera's coordinator: owns jobs, their queue, and where they run."};
  Flags flags;
  app.add_option("--state-dir", flags.state_dir, "Directory of the database and the socket")
      ->required()
      ->type_name("DIR");
  app.add_option("--listen", flags.listen,
                 "unix:PATH or a loopback HOST:PORT; may be repeated (default "
                 "unix:STATE_DIR/tesserad.sock)")
      ->type_name("ADDR");
  app.add_option(
         "--http", flags.http,
         "Loopback HOST:PORT of /metrics and the status page; port 0 picks a free one, which is "
         "written to STATE_DIR/http.port; \"\": off (default 127.0.0.1:0)")
      ->type_name("HOST:PORT");
  add_duration(app, "--lease", flags.control.lease.lease, "Silence after which a node is lost");
  add_duration(app, "--fence", flags.control.lease.fence,
               "Silence after which the ranks of a lost node end themselves");
  add_duration(app, "--check-timeout", flags.control.check_timeout,
               "Longest wait for an agent to check a submitted job");
  CLI11_PARSE(app, argc, argv);

  spdlog::set_default_logger(spdlog::stderr_color_mt("tesserad"));
  // Before any thread, so that all of them leave the signals to sigwait.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const absl::Status status = serve_until(signals, flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "tesserad: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace tessera::server

int main(int argc, char** argv) { return tessera::server::run(argc, argv); }
