// When what failed is tried again.
#pragma once

#include <chrono>
#include <random>

namespace tessera {

// Exponential with jitter: the n-th pause is between half of 0.2 s * 2^(n - 1) and all of it, and
// never above 5 s.
class Retry {
 public:
  using Clock = std::chrono::steady_clock;

  Clock::duration next_pause(std::minstd_rand& random);

 private:
  int num_tries_ = 0;
};

}  // namespace tessera
