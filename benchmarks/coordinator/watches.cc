// What it takes until an event that a rank has told is at those who watch: from the agent, through
// the commit, to the watcher, by the clock of one machine.
//
// Agents and watchers are on that machine, too: what an event costs them, and what it costs
// tesserad, is told beside the latency. With --at-once all jobs take their steps in the same
// moment, and the last of the events cannot be anywhere before the processors have seen to all.
#include <atomic>
#include <cstdio>
#include <ctime>
#include <thread>

#include "benchmarks/coordinator/bench.h"
#include "tests/support/fleet.h"

namespace tessera::bench {
namespace {

struct Options {
  int watchers = 1000;
  int jobs = 1000;
  int interval_ms = 1000;
  double seconds = 30;
  int connections = 4;
  bool at_once = false;
};

// Of this process.
double cpu_seconds() {
  return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
}

double seconds_since_told(const google::protobuf::Timestamp& time) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count() - static_cast<double>(time.seconds()) -
         1e-9 * time.nanos();
}

class Watch final : public grpc::ClientReadReactor<v1::WatchJobResponse> {
 public:
  Watch(v1::Coordinator::Stub& stub, const std::string& id, Samples& latencies,
        std::atomic<int>& num_open, const std::atomic<bool>& measures)
      : latencies_(latencies), num_open_(num_open), measures_(measures) {
    request_.set_id(id);
    ++num_open_;
    stub.async()->WatchJob(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const v1::Event& event = response_.event();
    if (event.has_step() && measures_) latencies_.add(seconds_since_told(event.time()));
    StartRead(&response_);
  }
  void OnDone(const grpc::Status&) override { --num_open_; }

 private:
  Samples& latencies_;
  std::atomic<int>& num_open_;
  const std::atomic<bool>& measures_;
  grpc::ClientContext context_;
  v1::WatchJobRequest request_;
  v1::WatchJobResponse response_;
};

void run(const Options& options, const Place& place) {
  support::TesseradProcess process(place.tesserad, place.directory, {"--http", ""});
  process.start();
  if (!process.await_serving()) throw std::runtime_error("tesserad does not serve");
  const auto stubs = connect(process.address(), options.connections);
  const auto ids = submit_all(*stubs[0], 0, options.jobs, 1 << 30);
  const support::Fleet fleet({.address = process.address(),
                              .num_nodes = (options.jobs + 99) / 100,
                              .devices_per_node = 100,
                              .step_interval = std::chrono::milliseconds(options.interval_ms),
                              .spread_steps = !options.at_once},
                             {});
  Samples latencies;
  std::atomic<int> num_open = 0;
  std::atomic<bool> measures = false;
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < options.watchers; ++i) {
    const auto number = static_cast<size_t>(i);
    watches.push_back(std::make_unique<Watch>(
        *stubs[number % stubs.size()], ids[number % ids.size()], latencies, num_open, measures));
  }
  // Jobs start, and watchers take in what was before.
  std::this_thread::sleep_for(std::chrono::seconds(5));
  measures = true;
  const auto before = process.cpu_time();
  const double own_before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  measures = false;
  const double cpu = (process.cpu_time() - before).count();
  const double own_cpu = cpu_seconds() - own_before;
  const auto num_events = static_cast<double>(latencies.size());
  std::printf("%d of %d watchers of %d jobs, a step every %d ms each%s: %.0f events/s seen\n",
              num_open.load(), options.watchers, options.jobs, options.interval_ms,
              options.at_once ? ", all at once" : "", num_events / options.seconds);
  std::printf("latency in ms: %s\n", latencies.describe(1e3).c_str());
  std::printf(
      "tesserad: %.2f cores, %.0f us an event, %.0f MiB resident; agents and watchers: "
      "%.2f cores, %.0f us\n",
      cpu / options.seconds, 1e6 * cpu / num_events, mebibytes(process.resident_bytes()),
      own_cpu / options.seconds, 1e6 * own_cpu / num_events);
  for (const auto& watch : watches) watch->cancel();
  while (num_open > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace

void add_watches(CLI::App& app, const Place& place) {
  auto options = std::make_shared<Options>();
  CLI::App& command = *app.add_subcommand("watches", "How late watchers see events");
  command.add_option("--watchers", options->watchers)->capture_default_str();
  command.add_option("--jobs", options->jobs, "That they are spread over")->capture_default_str();
  command.add_option("--interval-ms", options->interval_ms, "Between the steps of a job")
      ->capture_default_str();
  command.add_flag("--at-once", options->at_once, "All jobs take their steps in the same moment");
  command.add_option("--seconds", options->seconds)->capture_default_str();
  command.add_option("--connections", options->connections)->capture_default_str();
  command.callback([options, &place] { run(*options, place); });
}

}  // namespace tessera::bench
