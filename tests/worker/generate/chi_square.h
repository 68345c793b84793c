// Whether what was drawn is from a distribution.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <span>

namespace tessera::testing {

// P(X >= x) of a chi-square variable, by the Wilson-Hilferty approximation.
inline double chi_square_tail(double x, double degrees) {
  const double z =
      (std::cbrt(x / degrees) - (1 - 2 / (9 * degrees))) / std::sqrt(2 / (9 * degrees));
  return 0.5 * std::erfc(z / std::numbers::sqrt2);
}

// How often each token was drawn, of probability p: once in a thousand the right ones fail.
inline void expect_drawn_from(std::span<const double> p, std::span<const int64_t> counts) {
  const auto draws = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double statistic = 0, degrees = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
      continue;
    }
    const double expected = p[i] * draws, error = static_cast<double>(counts[i]) - expected;
    statistic += error * error / expected;
    ++degrees;
  }
  ASSERT_GT(degrees, 0);
  EXPECT_GT(chi_square_tail(statistic, degrees), 1e-3) << statistic << " of " << degrees;
}

}  // namespace tessera::testing
