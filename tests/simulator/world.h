// Time, chance and events of a simulation. All that happens is a function of the seed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

#include "server/jobs/clock.h"

namespace tessera::server::simulator {

// What must never be. Its text says what was.
class Violation : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class World final : public Clock {
 public:
  using Action = std::function<void()>;

  explicit World(uint64_t seed) : random_(seed) {}

  absl::Time wall() const override { return absl::FromUnixSeconds(1'700'000'000) + now_; }
  // No process starts at zero.
  absl::Duration uptime() const override { return absl::Hours(1) + now_; }
  absl::Duration now() const { return now_; }

  // Events of one moment come in the order in which they were asked for.
  void after(absl::Duration delay, Action action);
  // Runs what comes until `end`, or until `done`.
  void run(absl::Duration end, const std::function<bool()>& done);
  int64_t num_events() const { return num_events_; }

  uint32_t bits() { return static_cast<uint32_t>(random_()); }
  // In [low, high].
  int64_t between(int64_t low, int64_t high);
  absl::Duration between(absl::Duration low, absl::Duration high);
  bool chance(double probability);

  // With --verbose, a line with the time.
  void tell(const std::string& line) const;
  bool verbose = false;

 private:
  std::mt19937_64 random_;
  absl::Duration now_;
  int64_t order_ = 0;
  int64_t num_events_ = 0;
  std::map<std::pair<absl::Duration, int64_t>, Action> events_;
};

}  // namespace tessera::server::simulator
