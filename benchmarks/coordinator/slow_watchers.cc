// What a watcher costs that does not read: memory of tesserad, while each of many has asked for all
// the events of a long job and takes none.
#include <algorithm>
#include <cstdio>
#include <thread>

#include "benchmarks/coordinator/bench.h"
#include "tests/support/fleet.h"

namespace tessera::bench {
namespace {

struct Options {
  int watchers = 200;
  int events = 2000;
  int event_bytes = 8192;
};

// The largest over a while that is longer than anything takes to come.
int64_t settled_bytes(const support::TesseradProcess& process) {
  int64_t most = 0;
  for (int i = 0; i < 100; ++i) {
    most = std::max(most, process.resident_bytes());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return most;
}

struct SlowWatch {
  explicit SlowWatch(const std::string& address, const std::string& id)
      : stub(v1::Coordinator::NewStub(support::make_channel(address))) {
    request.set_id(id);
    stream = stub->WatchJob(&context, request);
  }
  ~SlowWatch() { context.TryCancel(); }

  std::unique_ptr<v1::Coordinator::Stub> stub;
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> stream;
};

void run(const Options& options, const Place& place) {
  support::TesseradProcess process(place.tesserad, place.directory, {"--http", ""});
  process.start();
  if (!process.await_serving()) throw std::runtime_error("tesserad does not serve");
  const auto stubs = connect(process.address(), 1);
  const std::string id = submit_all(*stubs[0], 0, 1, options.events).front();
  {
    const support::Fleet fleet({.address = process.address(),
                                .step_interval = std::chrono::milliseconds(1),
                                .log_bytes = options.event_bytes},
                               {});
    // One reader that takes everything, to the job's end: what that leaves is no watcher's cost.
    SlowWatch reader(process.address(), id);
    v1::WatchJobResponse response;
    int64_t num_events = 0;
    while (reader.stream->Read(&response)) ++num_events;
    std::printf("the job has %lld events of %d bytes\n", static_cast<long long>(num_events),
                options.event_bytes);
  }
  const int64_t before = settled_bytes(process);
  std::vector<std::unique_ptr<SlowWatch>> watches;
  for (int i = 0; i < options.watchers; ++i) {
    watches.push_back(std::make_unique<SlowWatch>(process.address(), id));
  }
  const int64_t after = settled_bytes(process);
  std::printf("%.0f MiB resident, %.0f MiB with %d watchers that do not read: %.2f MiB each\n",
              mebibytes(before), mebibytes(after), options.watchers,
              mebibytes(after - before) / options.watchers);
}

}  // namespace

void add_slow_watchers(CLI::App& app, const Place& place) {
  auto options = std::make_shared<Options>();
  CLI::App& command = *app.add_subcommand("slow-watchers", "Memory of watchers that do not read");
  command.add_option("--watchers", options->watchers)->capture_default_str();
  command.add_option("--events", options->events, "Of the job")->capture_default_str();
  command.add_option("--event-bytes", options->event_bytes)->capture_default_str();
  command.callback([options, &place] { run(*options, place); });
}

}  // namespace tessera::bench
