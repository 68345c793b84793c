// Memory of tesserad with a long queue and many running jobs, and its start with them.
#include <cstdio>
#include <thread>

#include "benchmarks/coordinator/bench.h"
#include "client/cpp/client.h"
#include "tests/support/fleet.h"

namespace tessera::bench {
namespace {

struct Options {
  int queued = 100'000;
  int running = 10'000;
  int devices = 100;
};

constexpr std::chrono::minutes kPatience{5};

size_t count(Client& client, v1::Job::State state, size_t limit) {
  const auto jobs = client.list({state}, limit);
  return jobs.ok() ? jobs->size() : 0;
}

void run(const Options& options, const Place& place) {
  support::TesseradProcess process(place.tesserad, place.directory, {"--http", ""});
  process.start();
  if (!process.await_serving()) throw std::runtime_error("tesserad does not serve");
  const auto stubs = connect(process.address(), 1);
  std::printf("empty: %.0f MiB\n", mebibytes(process.resident_bytes()));
  auto begin = SteadyClock::now();
  submit_all(*stubs[0], 0, options.queued + options.running, 1 << 30, 256);
  std::printf("%d queued in %.1f s: %.0f MiB\n", options.queued + options.running,
              seconds_since(begin), mebibytes(process.resident_bytes()));
  begin = SteadyClock::now();
  const support::Fleet fleet(
      {.address = process.address(),
       .num_nodes = (options.running + options.devices - 1) / options.devices,
       .devices_per_node = options.devices,
       .step_interval = std::chrono::seconds(20)},
      {});
  Client client = *Client::connect(process.address(), kPatience);
  const auto wanted = static_cast<size_t>(options.running);
  while (count(client, v1::Job::RUNNING, wanted) < wanted) {
    if (SteadyClock::now() - begin > kPatience) throw std::runtime_error("jobs do not start");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  std::printf("%d of them run after %.1f s: %.0f MiB\n", options.running, seconds_since(begin),
              mebibytes(process.resident_bytes()));
  // Two steps of each job.
  std::this_thread::sleep_for(std::chrono::seconds(45));
  std::printf("a while later: %.0f MiB\n", mebibytes(process.resident_bytes()));
  process.crash();
  begin = SteadyClock::now();
  process.start();
  if (!process.await_serving()) throw std::runtime_error("tesserad does not come back");
  const auto listed = client.list({}, 1);
  std::printf("killed, started again and asked: %.2f s%s, %.0f MiB\n", seconds_since(begin),
              listed.ok() ? "" : " (in vain)", mebibytes(process.resident_bytes()));
}

}  // namespace

void add_memory(CLI::App& app, const Place& place) {
  auto options = std::make_shared<Options>();
  CLI::App& command = *app.add_subcommand("memory", "Memory with many jobs");
  command.add_option("--queued", options->queued)->capture_default_str();
  command.add_option("--running", options->running)->capture_default_str();
  command.add_option("--devices", options->devices, "Of a node")->capture_default_str();
  command.callback([options, &place] { run(*options, place); });
}

}  // namespace tessera::bench
