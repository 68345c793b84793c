// Start of tesserad on a database with a long history, and what calls take there.
//
// The history is written by the coordinator's own store, as jobs that ran and ended; with --dir it
// stays, and is taken again.
#include <cstdio>
#include <random>

#include "absl/strings/str_cat.h"
#include "benchmarks/coordinator/bench.h"
#include "client/cpp/client.h"
#include "proto/spec/rules.h"
#include "server/jobs/job_table.h"

namespace tessera::bench {
namespace {

struct Options {
  int64_t jobs = 1'000'000;
  int64_t unfinished = 1000;
  int steps = 3;
};

constexpr int64_t kJobsPerCommit = 2000;

// A job as it comes out of a coordinator that has run it.
void add_job(server::JobTable& table, int64_t number, int steps, bool ends) {
  v1::JobSpec submitted = make_spec(steps);
  v1::JobSpec spec = submitted;
  spec::fill_defaults(spec);
  server::JobRecord& job = table.create(spec, submitted, absl::StrCat("history-", number));
  table.log(job, v1::LogLine::INFO, "accepted unchecked: no agent is connected");
  if (!ends) return;
  job.mutable_job()->set_attempt(1);
  table.transition(job, v1::Job::STARTING, "starts 1 rank on node-0");
  table.transition(job, v1::Job::RUNNING, "every rank has started");
  for (int step = 1; step <= steps; ++step) {
    v1::Event event;
    event.mutable_step()->set_step(step);
    event.mutable_step()->set_loss(1.0 / step);
    *job.mutable_job()->mutable_step() = event.step();
    table.append(job, std::move(event));
  }
  table.transition(job, v1::Job::SUCCEEDED, "wrote /srv/out/bench/final");
}

void write_history(const std::filesystem::path& path, const Options& options) {
  std::filesystem::create_directories(path.parent_path());
  auto store = server::Store::open(path);
  if (!store.ok()) throw std::runtime_error(std::string(store.status().message()));
  const server::SystemClock clock;
  std::mt19937 random(1);
  server::JobTable table(**store, clock, [&random] { return static_cast<uint32_t>(random()); });
  const auto begin = SteadyClock::now();
  for (int64_t number = 0; number < options.jobs + options.unfinished; ++number) {
    add_job(table, number, options.steps, number < options.jobs);
    if (number % kJobsPerCommit != 0) continue;
    table.flush();
    (*store)->commit();
  }
  table.flush();
  (*store)->commit();
  std::printf("%lld jobs written in %.0f s\n",
              static_cast<long long>(options.jobs + options.unfinished), seconds_since(begin));
}

template <class Call>
void time_call(const char* what, Call call) {
  const auto begin = SteadyClock::now();
  const bool ok = call();
  std::printf("%s: %.1f ms%s\n", what, 1e3 * seconds_since(begin), ok ? "" : ", and failed");
}

void run(const Options& options, const Place& place) {
  support::TesseradProcess process(place.tesserad, place.directory, {"--http", ""});
  const std::filesystem::path database = process.database();
  if (!std::filesystem::exists(database)) write_history(database, options);
  std::printf("the database has %.0f MiB\n",
              mebibytes(static_cast<int64_t>(std::filesystem::file_size(database))));
  const auto begin = SteadyClock::now();
  process.start();
  if (!process.await_serving()) throw std::runtime_error("tesserad does not serve");
  Client client = *Client::connect(process.address());
  const auto jobs = client.list({v1::Job::SUCCEEDED}, 1);
  std::printf("from its start to the first answer: %.2f s, %.0f MiB resident\n",
              seconds_since(begin), mebibytes(process.resident_bytes()));
  if (!jobs.ok() || jobs->empty()) throw std::runtime_error("the history is not there");
  time_call("get by id", [&] { return client.get(jobs->front().id()).ok(); });
  time_call("get by a name that no job has", [&] { return !client.get("other").ok(); });
  time_call("get by the name of many jobs that ended", [&] {
    const auto job = client.get("bench");
    return job.ok() == (options.unfinished == 1);
  });
  time_call("list the last 50", [&] { return client.list({}, 50).ok(); });
  time_call("list the queue",
            [&] { return client.list({v1::Job::QUEUED}, 50).ok() && client.queue(50).ok(); });
  time_call("submit", [&] { return client.submit(make_spec(1), make_request_id()).ok(); });
}

}  // namespace

void add_history(CLI::App& app, const Place& place) {
  auto options = std::make_shared<Options>();
  CLI::App& command = *app.add_subcommand("history", "Start with a long history");
  command.add_option("--jobs", options->jobs, "That have ended")->capture_default_str();
  command.add_option("--unfinished", options->unfinished)->capture_default_str();
  command.add_option("--steps", options->steps, "Of each")->capture_default_str();
  command.callback([options, &place] { run(*options, place); });
}

}  // namespace tessera::bench
