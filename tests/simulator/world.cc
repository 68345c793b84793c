#include "tests/simulator/world.h"

#include <cstdio>

namespace tessera::server::simulator {

void World::after(absl::Duration delay, Action action) {
  events_.emplace(std::pair(now_ + delay, ++order_), std::move(action));
}

void World::run(absl::Duration end, const std::function<bool()>& done) {
  while (!events_.empty() && events_.begin()->first.first <= end && !done()) {
    auto next = events_.extract(events_.begin());
    now_ = next.key().first;
    ++num_events_;
    next.mapped()();
  }
}

// The library's distributions differ between implementations; these do not.
int64_t World::between(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
}

absl::Duration World::between(absl::Duration low, absl::Duration high) {
  return absl::Microseconds(
      between(absl::ToInt64Microseconds(low), absl::ToInt64Microseconds(high)));
}

bool World::chance(double probability) {
  return static_cast<double>(random_() >> 11) * 0x1.0p-53 < probability;
}

void World::tell(const std::string& line) const {
  if (verbose) std::printf("%10.3f %s\n", absl::ToDoubleSeconds(now_), line.c_str());
}

}  // namespace tessera::server::simulator
