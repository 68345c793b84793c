// The control plane under faults, in simulated time: --seed N is one run, told step by step;
// --seeds N runs that many. A seed that fails does so again, in the same way.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include "tests/simulator/scenario.h"
#include "tests/simulator/world.h"

namespace tessera::server::simulator {
namespace {

void add(Report& sum, const Report& one) {
  sum.simulated += one.simulated;
  sum.num_events += one.num_events;
  sum.num_jobs += one.num_jobs;
  sum.num_attempts += one.num_attempts;
  sum.num_preemptions += one.num_preemptions;
  sum.num_crashes += one.num_crashes;
  sum.num_power_losses += one.num_power_losses;
  sum.num_kept_commits += one.num_kept_commits;
  sum.num_lost_commits += one.num_lost_commits;
  sum.num_shrunk += one.num_shrunk;
}

void print(const Report& report, double seconds) {
  std::printf(
      "%d jobs, %d attempts, %d preemptions, %d attempts with fewer ranks, %d crashes of the "
      "coordinator, %d by a loss of power, which struck %d commits that are there and %d that are "
      "not, %lld events; %.1f h "
      "simulated in %.1f s, %.0f times real time\n",
      report.num_jobs, report.num_attempts, report.num_preemptions, report.num_shrunk,
      report.num_crashes, report.num_power_losses, report.num_kept_commits, report.num_lost_commits,
      static_cast<long long>(report.num_events), absl::ToDoubleHours(report.simulated), seconds,
      absl::ToDoubleSeconds(report.simulated) / seconds);
}

// Of a long run; a failure is told at once.
constexpr uint64_t kSeedsBetweenLines = 1000;

int run(int argc, char** argv) {
  CLI::App app{"Simulates tesserad with agents, clients and faults"};
  uint64_t first = 1, count = 1;
  bool single = false;
  app.add_option_function<uint64_t>(
      "--seed",
      [&](uint64_t seed) {
        first = seed;
        single = true;
      },
      "This one, told step by step");
  app.add_option("--seeds", count, "So many, from --first on")->capture_default_str();
  app.add_option("--first", first, "The first of them")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  spdlog::set_level(spdlog::level::off);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto begin = std::chrono::steady_clock::now();
  Report sum;
  int num_failed = 0;
  for (uint64_t seed = first; seed < first + (single ? 1 : count); ++seed) {
    try {
      add(sum, run_scenario(seed, single));
    } catch (const Violation& violation) {
      std::printf("FAILED: --seed %llu: %s\n", static_cast<unsigned long long>(seed),
                  violation.what());
      ++num_failed;
    }
    if (seed > first && (seed - first) % kSeedsBetweenLines == 0) {
      std::printf("%llu seeds, %d failed\n", static_cast<unsigned long long>(seed - first),
                  num_failed);
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  print(sum, seconds.count());
  if (num_failed > 0) std::printf("%d seeds failed\n", num_failed);
  return num_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace tessera::server::simulator

int main(int argc, char** argv) { return tessera::server::simulator::run(argc, argv); }
