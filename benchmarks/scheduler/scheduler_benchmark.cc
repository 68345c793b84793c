// How many placements a second the scheduler makes on a large cluster with a long queue.
//
//   scheduler_benchmark [--nodes 10000] [--devices 8] [--queue 100000] [--gang 1] [--batch 1]
//
// The cluster is full and the queue is long; then jobs end, `batch` at a time, and each time a
// round fills the places. What is timed is the end of jobs and the rounds; the queue is kept long
// meanwhile.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "server/scheduler/scheduler.h"

namespace tessera::server {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kRacks = 250;
constexpr int kProjects = 50;
constexpr int kPriorities = 5;
// Distinct time limits of jobs, so that the queue has many shapes.
constexpr int kTimeLimits = 40;

struct Options {
  int nodes = 10'000;
  int devices = 8;
  int64_t queue = 100'000;
  int gang = 1;
  int batch = 1;
  double seconds = 5;
};

class Benchmark {
 public:
  explicit Benchmark(const Options& options) : options_(options) {
    for (int n = 0; n < options_.nodes; ++n) {
      NodeView node{absl::StrCat("n", n), absl::StrCat("r", n % kRacks), {}};
      for (int d = 0; d < options_.devices; ++d) {
        node.devices.push_back({d, "cuda", "H100", int64_t{80} << 30});
      }
      scheduler_.put_node(node);
    }
  }

  void run() {
    const auto begin = SteadyClock::now();
    const int64_t places = int64_t{options_.nodes} * options_.devices / options_.gang;
    while (next_ < places + options_.queue) enqueue();
    const auto queued = SteadyClock::now();
    while (static_cast<int64_t>(running_.size()) < places) {
      if (round() == 0) break;
    }
    const auto filled = SteadyClock::now();
    std::printf(
        "%d nodes of %d devices, %lld jobs of %d ranks queued in %.2f s; %zu placed in %.2f "
        "s\n",
        options_.nodes, options_.devices, static_cast<long long>(next_), options_.gang,
        seconds(begin, queued), running_.size(), seconds(queued, filled));
    churn();
  }

 private:
  static double seconds(SteadyClock::time_point begin, SteadyClock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
  }

  void enqueue() {
    const int64_t number = ++next_;
    // Spread by multiplication: neighbours in the queue are unlike each other.
    const int64_t mixed = number * 2654435761 % 1'000'003;
    scheduler_.queue({.id = absl::StrCat("job-", number),
                      .number = number,
                      .project = absl::StrCat("project-", mixed % kProjects),
                      .priority = static_cast<int>(mixed / kProjects % kPriorities),
                      .kind = "cuda",
                      .sizes = {{options_.gang, int64_t{40} << 30}},
                      .longest = absl::Minutes(10 + mixed % kTimeLimits)},
                     now_);
  }

  int64_t round() {
    now_ += absl::Milliseconds(1);
    const Decisions decisions = scheduler_.round(now_);
    for (const JobStart& start : decisions.starts) running_.push_back(start.number);
    return static_cast<int64_t>(decisions.starts.size());
  }

  void churn() {
    const auto begin = SteadyClock::now();
    int64_t placed = 0;
    std::vector<double> rounds;
    while (seconds(begin, SteadyClock::now()) < options_.seconds) {
      const auto round_begin = SteadyClock::now();
      for (int i = 0; i < options_.batch && !running_.empty(); ++i) {
        scheduler_.remove(running_.front(), now_);
        running_.pop_front();
        enqueue();
      }
      placed += round();
      rounds.push_back(seconds(round_begin, SteadyClock::now()));
    }
    std::sort(rounds.begin(), rounds.end());
    const double total = seconds(begin, SteadyClock::now());
    std::printf(
        "%zu rounds after %d ends each: %.0f gangs of %d placed a second, a round takes "
        "%.2f ms (median), %.2f ms (99%%)\n",
        rounds.size(), options_.batch, static_cast<double>(placed) / total, options_.gang,
        1e3 * rounds[rounds.size() / 2], 1e3 * rounds[rounds.size() * 99 / 100]);
  }

  const Options options_;
  Scheduler scheduler_{absl::Hours(24)};
  absl::Duration now_ = absl::Hours(1);
  int64_t next_ = 0;
  std::deque<int64_t> running_;
};

int run(int argc, char** argv) {
  CLI::App app{"Placements a second of the scheduler"};
  Options options;
  app.add_option("--nodes", options.nodes)->capture_default_str();
  app.add_option("--devices", options.devices, "Of a node")->capture_default_str();
  app.add_option("--queue", options.queue, "Jobs that wait")->capture_default_str();
  app.add_option("--gang", options.gang, "Ranks of a job")->capture_default_str();
  app.add_option("--batch", options.batch, "Jobs that end between two rounds")
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "To measure for")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  Benchmark(options).run();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace tessera::server

int main(int argc, char** argv) { return tessera::server::run(argc, argv); }
