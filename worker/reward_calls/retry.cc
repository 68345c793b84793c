#include "worker/reward_calls/retry.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

constexpr double kFirstSeconds = 0.2;
constexpr double kMostSeconds = 5;

}  // namespace

Retry::Clock::duration Retry::next_pause(std::minstd_rand& random) {
  const double most = std::min(kMostSeconds, kFirstSeconds * std::exp2(num_tries_++));
  const std::chrono::duration<double> pause(
      std::uniform_real_distribution<double>(most / 2, most)(random));
  return std::chrono::duration_cast<Clock::duration>(pause);
}

}  // namespace tessera
