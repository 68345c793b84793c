// Memory of tesserad with a long queue and many running jobs, and its start with them.
#include <atomic>
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
constexpr int kSubmitsPerLine = 10'000;

// Tells what they take as the queue grows.
void fill_queue(support::TesseradProcess& process, int count) {
  const auto stubs = connect(process.address(), 1);
  for (int first = 0; first < count; first += kSubmitsPerLine) {
    const int num = std::min(kSubmitsPerLine, count - first);
    const auto begin = SteadyClock::now();
    const auto cpu = process.cpu_time();
    submit_all(*stubs[0], first, num, 1 << 30, 256);
    std::printf("%d queued, the last %d at %.0f/s, %.0f us of tesserad's each: %.0f MiB\n",
                first + num, num, num / seconds_since(begin),
                1e6 * (process.cpu_time() - cpu).count() / num,
                mebibytes(process.resident_bytes()));
  }
}

void run(const Options& options, const Place& place) {
  support::TesseradProcess process(place.tesserad, place.directory, {"--http", ""});
  process.start();
  if (!process.await_serving()) throw std::runtime_error("tesserad does not serve");
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("empty: %.0f MiB\n", mebibytes(process.resident_bytes()));
  fill_queue(process, options.queued + options.running);
  auto begin = SteadyClock::now();
  std::atomic<int> num_started = 0;
  support::FleetObserver observer;
  observer.started = [&](const v1::RunId&, const std::string&) { ++num_started; };
  const support::Fleet fleet(
      {.address = process.address(),
       .num_nodes = (options.running + options.devices - 1) / options.devices,
       .devices_per_node = options.devices,
       .step_interval = std::chrono::seconds(20)},
      observer);
  // Not asked for: to list ten thousand jobs takes longer than to start some.
  while (num_started < options.running) {
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
  Client client = *Client::connect(process.address(), kPatience);
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
