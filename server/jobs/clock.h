// Time, handed in so that tests can turn it.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tessera::server {

// Thread safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // For what people read.
  virtual absl::Time wall() const = 0;
  // Grows steadily whatever happens to the wall clock: for leases and deadlines.
  virtual absl::Duration uptime() const = 0;
};

class SystemClock final : public Clock {
 public:
  absl::Time wall() const override { return absl::Now(); }
  absl::Duration uptime() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace tessera::server
