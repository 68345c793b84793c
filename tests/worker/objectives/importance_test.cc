#include "worker/objectives/importance.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::Pointwise;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Two completions of three and two labels.
class WeighSamples : public ::testing::Test {
 protected:
  ImportanceWeights weigh(const ImportanceOptions& options) const {
    return weigh_samples({.rollouts = rollouts_, .label_ends = ends_}, old_, sampling_, options);
  }
  static std::map<std::string, double> metrics(const ImportanceWeights& weights) {
    return {weights.metrics.begin(), weights.metrics.end()};
  }

  const std::vector<Rollout> rollouts_{Rollout(), Rollout()};
  const std::vector<int64_t> ends_{0, 3, 5};
  const std::vector<float> old_{-1, -1, -1, -2, -2};
  const std::vector<float> sampling_{-1.5, kNan, -1.25, -1, -2};
};

MATCHER(IsClose, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) < 1e-6; }

TEST_F(WeighSamples, TakesTheProductOfACompletion) {
  const double first = std::exp(0.75), second = std::exp(-1.);
  const ImportanceWeights weights = weigh({.most = 3});
  EXPECT_THAT(weights.of_labels, Pointwise(IsClose(), {first, first, first, second, second}));
  EXPECT_NEAR(metrics(weights).at("sampling/importance_sampling_ratio/mean"), (first + second) / 2,
              1e-6);
}

TEST_F(WeighSamples, MasksWhatIsOutOfBounds) {
  const double second = std::exp(-1.);
  EXPECT_THAT(weigh({.most = 2}).of_labels, Pointwise(IsClose(), {0., 0., 0., second, second}));
}

TEST_F(WeighSamples, TruncatesTokens) {
  const ImportanceWeights weights =
      weigh({.by_sequence = false, .masks = false, .least = 0.5, .most = 1.5});
  EXPECT_THAT(weights.of_labels, Pointwise(IsClose(), {1.5, 1., std::exp(0.25), 0.5, 1.}));
  EXPECT_NEAR(metrics(weights).at("sampling/importance_sampling_ratio/min"), 0.5, 1e-6);
  EXPECT_NEAR(metrics(weights).at("sampling/importance_sampling_ratio/max"), 1.5, 1e-6);
}

TEST_F(WeighSamples, MeasuresHowFarSamplingWas) {
  const auto measured = metrics(weigh({.most = 3}));
  EXPECT_NEAR(measured.at("sampling/sampling_logp_difference/mean"), (0.5 + 0.25 + 1 + 0) / 4,
              1e-6);
  EXPECT_NEAR(measured.at("sampling/sampling_logp_difference/max"), 1, 1e-6);
}

}  // namespace
}  // namespace tessera
