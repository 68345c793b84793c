// How many calls a client may make: a token bucket for each.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/time/time.h"
#include "server/jobs/clock.h"

namespace tessera::server {

// Thread safe.
class RateLimits {
 public:
  // `per_second` calls a second on average, `burst` at once. Requires: both above 0.
  RateLimits(double per_second, double burst, const Clock& clock)
      : per_second_(per_second), burst_(burst), clock_(clock) {}

  // Takes one call of the client. nullopt: it may be made; else: the time after which it may.
  std::optional<absl::Duration> take(const std::string& client);

 private:
  struct Bucket {
    double calls;
    absl::Duration filled;  // at, on Clock::uptime()
  };

  double calls_now(const Bucket& bucket, absl::Duration now) const;
  // Forgets clients that have all their calls again. Looks at most once in kForgetInterval: what a
  // call costs does not grow with the number of clients.
  void forget(absl::Duration now);

  const double per_second_;
  const double burst_;
  const Clock& clock_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::unordered_map<std::string, Bucket> buckets_;
  absl::Duration next_forget_;
};

}  // namespace tessera::server
