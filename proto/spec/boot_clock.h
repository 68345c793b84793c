// Time since this machine started, its sleep included: what leases are counted by. Nobody sets it,
// and all processes of a machine read the same.
#pragma once

#include <time.h>

#include <chrono>

namespace tessera::spec {

struct BootClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<BootClock>;
  static constexpr bool is_steady = true;

  static time_point now() {
    timespec time{};
    ::clock_gettime(CLOCK_BOOTTIME, &time);
    return time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
  }
};

}  // namespace tessera::spec
