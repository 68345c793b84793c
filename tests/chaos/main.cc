// Kills the coordinator at random moments while it is used, and holds every promise against it.
//
//   coordinator_chaos --tesserad PATH [--kills 1000] [--seed N] [--dir DIR] [--postgres URL]
//
// With --postgres there are two, of which one leads: three times of four that is the one that dies.
// The seed decides when it is killed and what users do; how far they have come by then is the
// machine's doing, so that a seed brings the same kind of run, and not the same run. Exit code 0:
// no promise was broken. Else each breach is a line, and --dir keeps the database and the log.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "tests/chaos/coordinators.h"
#include "tests/chaos/journal.h"
#include "tests/chaos/traffic.h"
#include "tests/chaos/verify.h"
#include "tests/client/temp_dir.h"
#include "tests/support/fleet.h"
#include "tests/support/tesserad_process.h"

namespace tessera::chaos {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{120};
constexpr milliseconds kPoll{20};

struct Options {
  std::string tesserad;
  // Of an empty database. Empty: SQLite.
  std::string postgres;
  int kills = 1000;
  uint64_t seed = 0;
  std::string directory;
  int nodes = 8;
  int devices = 8;
  int step_ms = 10;
  // Of a life that has begun to serve.
  int max_life_ms = 1000;
  // At the end the latest commits are taken away: that must be noticed.
  bool lose_commits = false;
  TrafficOptions traffic;
};

// Lives and deaths of the coordinator.
class Killer {
 public:
  Killer(Coordinators& coordinators, Journal& journal, uint64_t seed, int max_life_ms)
      : coordinators_(coordinators), journal_(journal), random_(seed), max_life_ms_(max_life_ms) {}

  // One of eight deaths comes while it starts.
  void kill() {
    const bool serves = draw(8) != 0;
    if (serves) await_serving();
    std::this_thread::sleep_for(milliseconds(draw(serves ? max_life_ms_ : kMaxStartMs)));
    if (coordinators_.any_ended()) journal_.violate("tesserad ended by itself");
    const size_t victim = choose();
    coordinators_.at(victim).crash();
    std::this_thread::sleep_for(milliseconds(draw(kMaxDownMs)));
    start(victim);
  }

  // Goes back to what the database was some acknowledged jobs ago, as a coordinator would that
  // answers before it commits.
  // Requires: there is one, on SQLite.
  void lose_commits() {
    support::TesseradProcess& process = coordinators_.at(0);
    const std::filesystem::path saved = process.state_dir().string() + "-saved";
    process.crash();
    copy_database(process.state_dir(), saved);
    start(0);
    const size_t wanted = journal_.num_jobs() + kLostJobs;
    while (journal_.num_jobs() < wanted) std::this_thread::sleep_for(kPoll);
    process.crash();
    copy_database(saved, process.state_dir());
    start(0);
  }

  void start(size_t index) {
    coordinators_.at(index).start();
    started_ = SteadyClock::now();
  }

  void start_all() {
    for (size_t i = 0; i < coordinators_.size(); ++i) start(i);
  }

  void await_serving() {
    if (!coordinators_.await_serving(kPatience)) journal_.violate("tesserad does not come back");
    starts_.push_back(SteadyClock::now() - started_);
  }

  // From exec until somebody takes calls, in seconds: the median and the longest.
  std::pair<double, double> start_seconds() {
    std::sort(starts_.begin(), starts_.end());
    if (starts_.empty()) return {};
    const auto seconds = [](SteadyClock::duration d) {
      return std::chrono::duration<double>(d).count();
    };
    return {seconds(starts_[starts_.size() / 2]), seconds(starts_.back())};
  }

 private:
  static constexpr int kMaxStartMs = 60, kMaxDownMs = 50;
  static constexpr size_t kLostJobs = 20;

  // With its log. What else SQLite keeps beside it is made of these.
  static void copy_database(const std::filesystem::path& from, const std::filesystem::path& to) {
    std::filesystem::create_directories(to);
    for (const char* name : {"tessera.db", "tessera.db-wal"}) {
      std::filesystem::remove(to / name);
      if (std::filesystem::exists(from / name)) std::filesystem::copy(from / name, to / name);
    }
    std::filesystem::remove(to / "tessera.db-shm");
  }

  size_t choose() {
    if (coordinators_.size() == 1) return 0;
    const std::optional<size_t> leader = coordinators_.leader();
    if (leader && draw(4) != 0) return *leader;
    return static_cast<size_t>(draw(static_cast<int>(coordinators_.size())));
  }

  int draw(int below) { return static_cast<int>(random_() % static_cast<uint64_t>(below)); }

  Coordinators& coordinators_;
  Journal& journal_;
  std::mt19937_64 random_;
  const int max_life_ms_;
  SteadyClock::time_point started_;
  std::vector<SteadyClock::duration> starts_;
};

support::FleetObserver observe(Journal& journal) {
  return {
      .started = [&](const v1::RunId& run, const std::string& node) { journal.started(run, node); },
      .ended = [&](const v1::RunId& run, const std::string& node, int num_finished,
                   int world_size) { journal.ended(run, node, num_finished, world_size); },
      .violated = [&](const std::string& sentence) { journal.violate(sentence); }};
}

void await_ends(Journal& journal) {
  const auto give_up = SteadyClock::now() + kPatience;
  while (journal.num_unfinished() > 0 && journal.violations().empty() &&
         SteadyClock::now() < give_up) {
    std::this_thread::sleep_for(kPoll);
  }
  if (!journal.violations().empty()) return;
  for (const std::string& id : journal.unfinished()) {
    journal.violate("job " + id + " does not end");
  }
}

void print(const TrafficCounts& counts, const Verified& sums) {
  std::printf(
      "%lld jobs (%lld succeeded, %lld cancelled) of %lld submits, %lld of them repeated; %lld "
      "changes, %lld looks; %lld events\n",
      static_cast<long long>(sums.num_jobs), static_cast<long long>(sums.num_succeeded),
      static_cast<long long>(sums.num_cancelled), static_cast<long long>(counts.num_submits),
      static_cast<long long>(counts.num_repeats), static_cast<long long>(counts.num_changes),
      static_cast<long long>(counts.num_looks), static_cast<long long>(sums.num_events));
  std::printf(
      "%lld jobs watched, %lld events; watches broken off and resumed %lld times, %lld times by "
      "kills\n",
      static_cast<long long>(counts.num_watched_jobs),
      static_cast<long long>(counts.num_watched_events), static_cast<long long>(counts.num_resumes),
      static_cast<long long>(counts.num_broken));
}

int run_chaos(const Options& options, const std::filesystem::path& directory) {
  Journal journal;
  Coordinators coordinators(options.tesserad, directory, options.postgres);
  Killer killer(coordinators, journal, options.seed, options.max_life_ms);
  const auto begin = SteadyClock::now();
  killer.start_all();
  killer.await_serving();
  support::Fleet fleet({.address = coordinators.address(),
                        .num_nodes = options.nodes,
                        .devices_per_node = options.devices,
                        .step_interval = milliseconds(options.step_ms)},
                       observe(journal));
  TrafficOptions traffic_options = options.traffic;
  traffic_options.address = coordinators.address();
  traffic_options.seed = options.seed;
  Traffic traffic(traffic_options, journal);
  for (int i = 0; i < options.kills && journal.violations().empty(); ++i) killer.kill();
  if (options.lose_commits) killer.lose_commits();
  killer.await_serving();
  traffic.finish_submits();
  await_ends(journal);
  traffic.finish();
  Client client = *Client::connect(coordinators.address(), kPatience);
  const Verified sums = verify(client, journal);
  if (coordinators.any_ended()) journal.violate("tesserad ended by itself");
  for (size_t i = 0; i < coordinators.size(); ++i) {
    support::TesseradProcess& process = coordinators.at(i);
    if (process.runs() && process.stop() != 0) journal.violate("tesserad did not stop with 0");
    if (options.postgres.empty()) verify_database(process.database().string(), journal);
  }
  const std::chrono::duration<double> seconds = SteadyClock::now() - begin;
  const auto [median, longest] = killer.start_seconds();
  std::printf("%d kills in %.0f s, seed %llu; from a start to serving %.3f s (median), %.3f s\n",
              options.kills, seconds.count(), static_cast<unsigned long long>(options.seed), median,
              longest);
  print(traffic.counts(), sums);
  for (const std::string& violation : journal.violations()) {
    std::printf("BROKEN: %s\n", violation.c_str());
  }
  return journal.violations().empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

int run(int argc, char** argv) {
  CLI::App app{"Kills the coordinator at random moments while it is used"};
  Options options;
  app.add_option("--tesserad", options.tesserad, "The program")->required();
  auto* const lose_commits =
      app.add_flag("--lose-commits", options.lose_commits,
                   "Take the latest commits away at the end: breaches must be found");
  app.add_option("--postgres", options.postgres,
                 "URL of an empty database that two coordinators share")
      ->excludes(lose_commits);
  app.add_option("--kills", options.kills)->capture_default_str();
  app.add_option("--seed", options.seed, "0: one at random, which is printed");
  app.add_option("--dir", options.directory,
                 "Empty directory for the database and the log, which stay; else they go");
  app.add_option("--nodes", options.nodes)->capture_default_str();
  app.add_option("--devices", options.devices, "Of a node")->capture_default_str();
  app.add_option("--step-ms", options.step_ms, "Of a step of a job")->capture_default_str();
  app.add_option("--max-life-ms", options.max_life_ms, "Longest time between two deaths")
      ->capture_default_str();
  app.add_option("--submitters", options.traffic.num_submitters)->capture_default_str();
  app.add_option("--watchers", options.traffic.num_watchers)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (options.seed == 0) options.seed = std::random_device()();
  std::printf("--seed %llu\n", static_cast<unsigned long long>(options.seed));
  std::fflush(stdout);
  if (!options.directory.empty()) return run_chaos(options, options.directory);
  const TempDir directory;
  return run_chaos(options, directory.path());
}

}  // namespace
}  // namespace tessera::chaos

int main(int argc, char** argv) { return tessera::chaos::run(argc, argv); }
