// Every table that this machine runs, against plain formulas in double precision.
#include "worker/kernels/cpu_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/worker/kernels/kernel_test.h"

namespace tessera {
namespace {

using testing::expect_near;
using testing::kTolerance;
using testing::Matrix;
using testing::rounded;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class CpuKernelsTest : public testing::KernelTest {
 protected:
  template <typename T>
  void check_rms_norm();
  template <typename T>
  void check_rotate();
  template <typename T>
  void check_swiglu();
  template <typename T>
  void check_softmax();
};

template <typename T>
void CpuKernelsTest::check_rms_norm() {
  constexpr double kEps = 1e-5;
  const Matrix<T> x = make<T>(1), upstream = make<T>(2), residual = make<T>(3);
  const Matrix<T> weight(1, width_, 4);
  std::vector<double> scale, mean;
  for (int64_t row = 0; row < num_rows_; ++row) {
    double squares = 0, dot = 0;
    for (int64_t i = 0; i < width_; ++i) squares += x.at(row, i) * x.at(row, i);
    scale.push_back(1 / std::sqrt(squares / width_ + kEps));
    for (int64_t i = 0; i < width_; ++i) {
      dot += upstream.at(row, i) * weight.at(0, i) * x.at(row, i) * scale.back();
    }
    mean.push_back(dot / width_);
  }
  Matrix<T> y = make<T>(5);
  of<T>().rms_norm(y.rows(), x.rows(), weight.values.data(), kEps, num_rows_, width_);
  expect_near(y, table([&](int64_t row, int64_t i) {
                return x.at(row, i) * scale[row] * weight.at(0, i);
              }));

  const auto grad = [&](int64_t row, int64_t i) {
    const double normed = x.at(row, i) * scale[row];
    return (upstream.at(row, i) * weight.at(0, i) - normed * mean[row]) * scale[row];
  };
  Matrix<T> grad_x = make<T>(6), in_place = residual;
  std::vector<float> grad_weight(width_, 1.0f);
  of<T>().rms_norm_backward(grad_x.rows(), grad_weight.data(), upstream.rows(), x.rows(),
                            weight.values.data(), {nullptr, 0}, kEps, num_rows_, width_);
  // A row of one value has a scale of 1 / |x|, and its gradient cancels.
  const double largest = *std::max_element(scale.begin(), scale.end());
  expect_near(grad_x, table(grad), 10 * (1 + largest));
  for (int64_t i = 0; i < width_; ++i) {
    double sum = 1;
    for (int64_t row = 0; row < num_rows_; ++row)
      sum += upstream.at(row, i) * x.at(row, i) * scale[row];
    ASSERT_NEAR(grad_weight[i], sum, 1e-5 * (1 + std::abs(sum)));
  }
  of<T>().rms_norm_backward(in_place.rows(), grad_weight.data(), upstream.rows(), x.rows(),
                            weight.values.data(), std::as_const(in_place).rows(), kEps, num_rows_,
                            width_);
  expect_near(in_place,
              table([&](int64_t row, int64_t i) { return residual.at(row, i) + grad(row, i); }),
              10 * (1 + largest));
}

TEST_P(CpuKernelsTest, RmsNorm) {
  check_rms_norm<float>();
  check_rms_norm<Bfloat>();
}

template <typename T>
void CpuKernelsTest::check_rotate() {
  const int64_t half = width_;
  const Matrix<T> x(num_rows_, 2 * half, 1), cosine(1, half, 2), sine(1, half, 3);
  for (const bool back : {false, true}) {
    std::vector<double> expected(num_rows_ * 2 * half);
    for (int64_t row = 0; row < num_rows_; ++row) {
      for (int64_t i = 0; i < half; ++i) {
        const double a = x.at(row, i), b = x.at(row, half + i);
        const double c = cosine.at(0, i), s = back ? -sine.at(0, i) : sine.at(0, i);
        expected[row * 2 * half + i] = a * c - b * s;
        expected[row * 2 * half + half + i] = b * c + a * s;
      }
    }
    Matrix<T> y = x;
    of<T>().rotate(y.rows(), std::as_const(y).rows(), cosine.values.data(), sine.values.data(),
                   back, num_rows_, half);
    expect_near(y, expected);
  }
}

TEST_P(CpuKernelsTest, Rotate) {
  check_rotate<float>();
  check_rotate<Bfloat>();
}

template <typename T>
void CpuKernelsTest::check_swiglu() {
  Matrix<T> gate = make<T>(1), up = make<T>(2), upstream = make<T>(3);
  // Sigmoids at both ends.
  gate.values.front() = rounded<T>(-200);
  gate.values[gate.width - 1] = rounded<T>(150);
  const auto silu = [&](int64_t row, int64_t i) {
    return gate.at(row, i) * sigmoid(gate.at(row, i));
  };
  const auto expected_h =
      table([&](int64_t row, int64_t i) { return silu(row, i) * up.at(row, i); });
  Matrix<T> h = make<T>(4), grad_gate = make<T>(5), grad_up = make<T>(6), again = make<T>(7);
  of<T>().swiglu(h.rows(), std::as_const(gate).rows(), std::as_const(up).rows(), num_rows_, width_);
  expect_near(h, expected_h);
  of<T>().swiglu_backward(grad_gate.rows(), grad_up.rows(), again.rows(),
                          std::as_const(upstream).rows(), std::as_const(gate).rows(),
                          std::as_const(up).rows(), num_rows_, width_);
  expect_near(again, expected_h);
  EXPECT_EQ(again.before.size(), h.values.size());
  expect_near(grad_up,
              table([&](int64_t row, int64_t i) { return upstream.at(row, i) * silu(row, i); }));
  expect_near(grad_gate, table([&](int64_t row, int64_t i) {
                const double s = sigmoid(gate.at(row, i));
                return upstream.at(row, i) * up.at(row, i) * s * (1 + gate.at(row, i) * (1 - s));
              }));
}

TEST_P(CpuKernelsTest, SwiGlu) {
  check_swiglu<float>();
  check_swiglu<Bfloat>();
}

template <typename T>
void CpuKernelsTest::check_softmax() {
  Matrix<T> logits = make<T>(1);
  // A tie for the largest.
  if (width_ > 20) logits.values[3] = logits.values[20] = rounded<T>(9);
  for (const int64_t label : {int64_t{0}, std::min<int64_t>(width_ - 1, 3),
                              std::min<int64_t>(width_ - 1, 20), width_ - 1}) {
    double sum = 0, mean = 0, entropy = 0;
    int64_t largest = 0;
    for (int64_t i = 0; i < width_; ++i) {
      sum += std::exp(logits.at(0, i));
      if (logits.at(0, i) > logits.at(0, largest)) largest = i;
    }
    const auto logp = [&](int64_t i) { return logits.at(0, i) - std::log(sum); };
    for (int64_t i = 0; i < width_; ++i) {
      mean += logp(i) / width_;
      entropy -= std::exp(logp(i)) * logp(i);
    }
    double mean_logit = 0, sum_sq = 0;
    for (int64_t i = 0; i < width_; ++i) {
      mean_logit += double{logits.at(0, i)} / static_cast<double>(width_);
      sum_sq += std::exp(2 * logp(i));
    }
    std::vector<float> exps(width_);
    const LabelStats stats = of<T>().label_stats(exps.data(), logits.values.data(), label, width_,
                                                 /*log_sum_sq=*/false);
    EXPECT_NEAR(stats.logprob, logp(label), 2e-6 * (1 + std::abs(logp(label))));
    EXPECT_NEAR(stats.mean_logprob, mean, 2e-6 * (1 + std::abs(mean)));
    EXPECT_NEAR(stats.entropy, entropy, 2e-6 * (1 + entropy));
    EXPECT_EQ(stats.correct, label == largest ? 1 : 0);
    EXPECT_NEAR(stats.mean_logit, mean_logit, 2e-6 * (1 + std::abs(mean_logit)));
    EXPECT_EQ(stats.log_sum_sq, 0);
    const LabelStats all = of<T>().label_stats(exps.data(), logits.values.data(), label, width_,
                                               /*log_sum_sq=*/true);
    EXPECT_NEAR(all.log_sum_sq, std::log(sum_sq), 2e-6 * (1 + std::abs(std::log(sum_sq))));
    EXPECT_EQ(all.entropy, stats.entropy);
    for (int64_t i = 0; i < width_; ++i) {
      ASSERT_NEAR(exps[i] / stats.sum_of_exps, std::exp(logp(i)), 1e-6);
    }
    constexpr float kOfLabel = -0.7f, kOfMean = 0.2f;
    Matrix<T> grad(1, width_, 2);
    of<T>().logit_gradient(grad.data(), exps.data(), stats.sum_of_exps, kOfLabel, kOfMean, label,
                           width_);
    std::vector<double> expected;
    for (int64_t i = 0; i < width_; ++i) {
      const double p = std::exp(logp(i));
      expected.push_back(double{kOfLabel} * ((i == label) - p) +
                         double{kOfMean} * (1.0 / static_cast<double>(width_) - p));
    }
    expect_near(grad, expected);
  }
}

TEST_P(CpuKernelsTest, LabelStatsAndTheirGradient) {
  check_softmax<float>();
  check_softmax<Bfloat>();
}

TEST_P(CpuKernelsTest, LogitsFarFromZero) {
  std::vector<float> logits(width_, 3000.0f), exps(width_);
  logits.front() = -3000.0f;
  const LabelStats stats = of<float>().label_stats(exps.data(), logits.data(), width_ - 1, width_,
                                                   /*log_sum_sq=*/true);
  const double expected = width_ == 1 ? 0 : -std::log(width_ - 1);
  EXPECT_NEAR(stats.logprob, expected, 1e-5);
  EXPECT_NEAR(stats.entropy, -expected, 1e-5);
  EXPECT_NEAR(stats.log_sum_sq, expected, 1e-5);
}

// The part of a row of scores that a query sees: all of it, its end, a part in the middle, one.
std::pair<int64_t, int64_t> seen_range(int64_t row, int64_t width) {
  if (row == 0) return {0, width};
  if (row == 1) return {width / 2, width};
  return {width / 3, std::min(width, width / 3 + (row == 2 ? 1 : width / 2 + 1))};
}

TEST_P(CpuKernelsTest, AttentionScores) {
  const Matrix<float> scores = make<float>(1);
  Matrix<float> exps = scores, probabilities = scores;
  std::vector<double> expected_exps, expected_probabilities;
  for (int64_t row = 0; row < num_rows_; ++row) {
    const auto [first, last] = seen_range(row, width_);
    double largest = -1e30, sum = 0;
    for (int64_t i = first; i < last; ++i) largest = std::max(largest, scores.at(row, i));
    for (int64_t i = first; i < last; ++i) sum += std::exp(scores.at(row, i) - largest);
    for (int64_t i = 0; i < width_; ++i) {
      const double exp = i < first || i >= last ? 0 : std::exp(scores.at(row, i) - largest);
      expected_exps.push_back(exp);
      expected_probabilities.push_back(exp / sum);
    }
    const SoftmaxSums sums = kernels_->softmax(exps.rows()[row], first, last, width_);
    EXPECT_EQ(sums.largest, static_cast<float>(largest));
    EXPECT_NEAR(sums.sum, sum, 2e-6 * sum);
    kernels_->probabilities(probabilities.rows()[row], static_cast<float>(largest + std::log(sum)),
                            first, last, width_);
  }
  expect_near(exps, expected_exps);
  expect_near(probabilities, expected_probabilities);
}

TEST_P(CpuKernelsTest, GradientOfAttentionScores) {
  const Matrix<float> probabilities = make<float>(1), upstream = make<float>(2);
  Matrix<float> gradient = upstream;
  for (int64_t row = 0; row < num_rows_; ++row) {
    double dot = 0, size = 0;
    for (int64_t i = 0; i < width_; ++i) {
      dot += probabilities.at(row, i) * upstream.at(row, i);
      size += std::abs(probabilities.at(row, i) * upstream.at(row, i));
    }
    EXPECT_NEAR(kernels_->dot(probabilities.rows()[row], upstream.rows()[row], width_), dot,
                1e-6 * (1 + size));
    kernels_->score_gradient(gradient.rows()[row], probabilities.rows()[row], 0.25f, width_);
  }
  expect_near(gradient, table([&](int64_t row, int64_t i) {
                return probabilities.at(row, i) * (upstream.at(row, i) - 0.25);
              }));
}

TEST_P(CpuKernelsTest, AdamW) {
  const Matrix<float> weights(1, width_, 1), exp_avgs(1, width_, 2), gradients(1, width_, 4);
  Matrix<float> exp_avg_sqs(1, width_, 3);
  for (float& value : exp_avg_sqs.values) value = std::abs(value);
  const AdamWStep step{.gradient_scale = 0.5f,
                       .decay = 0.999f,
                       .keep1 = 0.1f,
                       .keep2 = 0.01f,
                       .step_size = 0.03f,
                       .root_correction = 0.3f,
                       .epsilon = 1e-8f};
  Matrix<float> w = weights, m = exp_avgs, v = exp_avg_sqs;
  v.before = v.values;
  kernels_->adamw(w.data(), m.data(), v.data(), gradients.values.data(), step, width_);
  std::vector<double> new_w, new_m, new_v;
  for (int64_t i = 0; i < width_; ++i) {
    const double g = gradients.at(0, i) * 0.5;
    new_m.push_back(0.9 * exp_avgs.at(0, i) + 0.1 * g);
    new_v.push_back(0.99 * exp_avg_sqs.at(0, i) + 0.01 * g * g);
    new_w.push_back(weights.at(0, i) * 0.999 -
                    0.03 * new_m.back() / (std::sqrt(new_v.back()) / 0.3 + 1e-8));
  }
  expect_near(w, new_w);
  expect_near(m, new_m);
  expect_near(v, new_v);
}

// An update must not depend on where in a range of work a weight stands.
TEST_P(CpuKernelsTest, AdamWGivesTheSameBitsForAnyRange) {
  const Matrix<float> weights(1, width_, 1), gradients(1, width_, 4);
  Matrix<float> m(1, width_, 2), v(1, width_, 3);
  for (float& value : v.values) value = std::abs(value);
  const AdamWStep step{0.7f, 0.9f, 0.1f, 0.001f, 0.01f, 0.2f, 1e-8f};
  Matrix<float> w = weights, w2 = weights, m2 = m, v2 = v;
  kernels_->adamw(w.data(), m.data(), v.data(), gradients.values.data(), step, width_);
  for (int64_t i = 0; i < width_; ++i) {
    kernels_->adamw(w2.data() + i, m2.data() + i, v2.data() + i, gradients.values.data() + i, step,
                    1);
  }
  EXPECT_EQ(w.values, w2.values);
  EXPECT_EQ(m.values, m2.values);
  EXPECT_EQ(v.values, v2.values);
}

INSTANTIATE_TEST_SUITE_P(Sets, CpuKernelsTest, ::testing::ValuesIn(testing::kernel_cases()),
                         testing::case_name);

TEST(CpuKernelsChoice, TakesTheBestThatTheMachineRuns) {
  ASSERT_NE(cpu_kernels(CpuSet::kBaseline), nullptr);
  const CpuKernels* best = cpu_kernels(CpuSet::kBaseline);
  for (const CpuSet set : {CpuSet::kAvx2, CpuSet::kAvx512}) {
    if (cpu_kernels(set) != nullptr) best = cpu_kernels(set);
  }
  EXPECT_EQ(&cpu_kernels(), best);
}

}  // namespace
}  // namespace tessera
