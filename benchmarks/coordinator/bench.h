// What the benchmarks of the coordinator share.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/v1/coordinator.grpc.pb.h"
#include "tests/support/tesserad_process.h"

namespace tessera::bench {

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point begin);
double mebibytes(int64_t bytes);

// Thread safe.
class Samples {
 public:
  void add(double value);
  size_t size() const;
  // The value that `share` of them are at most. Requires: there are some, 0 <= share <= 1.
  double quantile(double share) const;
  // "p50 1.2, p90 ..., most ..." of values times `scale`; "none" where there are none.
  std::string describe(double scale) const;

 private:
  mutable std::mutex mutex_;
  mutable std::vector<double> values_;  // guarded by mutex_
};

// A valid job of one rank that takes `num_steps`.
v1::JobSpec make_spec(int num_steps);
v1::SubmitJobRequest make_submit(int64_t number, int num_steps);

// Stubs on connections of their own: one carries no more than a core's worth.
std::vector<std::unique_ptr<v1::Coordinator::Stub>> connect(const std::string& address, int count);

// Calls that run at the same time, `most` of them, from one thread: a benchmark's load must not
// cost more than what it loads. A callback lets go of its call before it calls end(): a context
// holds its channel, and gRPC's own threads must not be the ones that end the last channel.
class InFlight {
 public:
  explicit InFlight(int most) : most_(most) {}
  // Waits for a place.
  void begin();
  void end();
  void await_none();
  int count() const;

 private:
  const int most_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// Submits jobs [first, first + count), `at_once` of them at the same time; all must be taken.
// Throws std::runtime_error. Returns their ids.
std::vector<std::string> submit_all(v1::Coordinator::Stub& stub, int64_t first, int count,
                                    int num_steps, int at_once = 64);

// Milliseconds that a write of 4 KiB and fdatasync take in the directory, the median: what durable
// means on this disk.
double sync_ms(const std::filesystem::path& directory);

struct Place {
  std::string tesserad;
  std::filesystem::path directory;
};

// Each adds its subcommand and flags; `place` is filled in by the time it runs.
void add_submits(CLI::App& app, const Place& place);
void add_watches(CLI::App& app, const Place& place);
void add_slow_watchers(CLI::App& app, const Place& place);
void add_memory(CLI::App& app, const Place& place);
void add_history(CLI::App& app, const Place& place);

}  // namespace tessera::bench
