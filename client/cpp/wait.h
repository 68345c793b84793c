// Waiting that a stop request ends.
#pragma once

#include <chrono>
#include <stop_token>

namespace tessera {

// Waits for `duration`, or until a stop is requested. False when it was.
bool wait_for(std::stop_token stop, std::chrono::milliseconds duration);

// Delays between attempts: doubling from kFirst to kLast.
class Backoff {
 public:
  static constexpr std::chrono::milliseconds kFirst{50};
  static constexpr std::chrono::milliseconds kLast{1000};

  // Waits for the next delay. False when a stop was requested.
  bool wait(std::stop_token stop);
  void reset() { next_ = kFirst; }
  // Nothing was waited for since the start or the last reset().
  bool is_first() const { return next_ == kFirst; }

 private:
  std::chrono::milliseconds next_ = kFirst;
};

}  // namespace tessera
