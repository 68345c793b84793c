// The divergence of two rows of logits, on every table that this machine runs, against plain
// formulas in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/worker/kernels/kernel_test.h"

namespace tessera {
namespace {

using testing::expect_near;
using testing::Matrix;
using testing::rounded;

class DivergenceKernelTest : public testing::KernelTest {
 protected:
  template <typename T>
  void check_divergence(double beta);
};

// A plain formula of the generalised Jensen-Shannon divergence and its gradient.
template <typename T>
void DivergenceKernelTest::check_divergence(double beta) {
  Matrix<T> student = make<T>(1), teacher = make<T>(2);
  // What one of the two finds impossible, or takes for certain.
  if (width_ > 20) {
    student.values[2] = teacher.values[5] = rounded<T>(-150);
    student.values[7] = rounded<T>(30);
  }
  const auto softmax = [&](const Matrix<T>& logits, int64_t row) {
    std::vector<double> values;
    double sum = 0;
    for (int64_t i = 0; i < width_; ++i) values.push_back(std::exp(logits.at(row, i)));
    for (const double value : values) sum += value;
    for (double& value : values) value /= sum;
    return values;
  };
  constexpr float kUpstream = -0.7f;
  for (int64_t row = 0; row < std::min<int64_t>(num_rows_, 2); ++row) {
    const std::vector<double> p = softmax(student, row), q = softmax(teacher, row);
    std::vector<double> ratio;
    double expected = 0, mean = 0;
    for (int64_t i = 0; i < width_; ++i) {
      const double m = beta == 1 ? q[i] : (1 - beta) * p[i] + beta * q[i];
      ratio.push_back(std::log(p[i] / m));
      mean += p[i] * ratio[i];
      expected += beta == 0   ? q[i] * std::log(q[i] / p[i])
                  : beta == 1 ? p[i] * ratio[i]
                              : (1 - beta) * p[i] * ratio[i] + beta * q[i] * std::log(q[i] / m);
    }
    Matrix<T> gradient(1, width_, 3);
    const float found = of<T>().divergence(gradient.data(), student.rows()[row],
                                           teacher.rows()[row], beta, kUpstream, width_);
    EXPECT_NEAR(found, expected, 2e-6 * (1 + std::abs(expected)));
    std::vector<double> expected_gradient;
    for (int64_t i = 0; i < width_; ++i) {
      const double by_logit = beta == 0   ? p[i] - q[i]
                              : beta == 1 ? p[i] * (ratio[i] - mean)
                                          : (1 - beta) * p[i] * (ratio[i] - mean);
      expected_gradient.push_back(kUpstream * by_logit);
    }
    expect_near(gradient, expected_gradient, 1 + std::abs(expected));
    // In place, and without a gradient.
    Matrix<T> in_place(1, width_, 4);
    std::copy_n(student.rows()[row], width_, in_place.data());
    EXPECT_EQ(of<T>().divergence(in_place.data(), in_place.data(), teacher.rows()[row], beta,
                                 kUpstream, width_),
              found);
    EXPECT_EQ(0, std::memcmp(in_place.data(), gradient.data(), width_ * sizeof(T)));
    EXPECT_EQ(
        of<T>().divergence(nullptr, student.rows()[row], teacher.rows()[row], beta, 0, width_),
        found);
  }
}

TEST_P(DivergenceKernelTest, ValueAndGradient) {
  for (const double beta : {0.0, 0.1, 0.5, 0.999, 1.0}) {
    check_divergence<float>(beta);
    check_divergence<Bfloat>(beta);
  }
}

// A student that nearly is its teacher: the terms of a row cancel but for a millionth of them.
TEST_P(DivergenceKernelTest, NearlyEqualRows) {
  const Matrix<float> teacher = make<float>(1), noise = make<float>(2);
  Matrix<float> student = teacher;
  for (size_t i = 0; i < student.values.size(); ++i) student.values[i] += 1e-3f * noise.values[i];
  double sum_p = 0, sum_q = 0, expected = 0;
  for (int64_t i = 0; i < width_; ++i) {
    sum_p += std::exp(student.at(0, i));
    sum_q += std::exp(teacher.at(0, i));
  }
  for (int64_t i = 0; i < width_; ++i) {
    const double p = std::exp(student.at(0, i)) / sum_p, q = std::exp(teacher.at(0, i)) / sum_q;
    const double m = (p + q) / 2;
    expected += (p * std::log(p / m) + q * std::log(q / m)) / 2;
  }
  EXPECT_NEAR(
      of<float>().divergence(nullptr, student.values.data(), teacher.values.data(), 0.5, 0, width_),
      expected, 1.5e-8);
}

TEST_P(DivergenceKernelTest, LogitsFarFromZero) {
  std::vector<float> student(width_, 3000.0f), teacher(width_, -3000.0f);
  student.front() = -3000.0f;
  teacher.front() = 3000.0f;
  for (const double beta : {0.0, 0.3, 1.0}) {
    std::vector<float> gradient(width_);
    const float found =
        of<float>().divergence(gradient.data(), student.data(), teacher.data(), beta, 1, width_);
    // Nothing that both think possible. A KL of that is the distance of the logits.
    double expected = -beta * std::log(beta) - (1 - beta) * std::log(1 - beta);
    if (beta == 0) expected = 6000 + std::log(std::max<double>(1, width_ - 1));
    if (beta == 1) expected = 6000 - std::log(std::max<double>(1, width_ - 1));
    if (width_ == 1) expected = 0;
    EXPECT_NEAR(found, expected, 4e-6 * (1 + expected)) << beta;
    for (const float value : gradient) EXPECT_TRUE(std::isfinite(value));
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, DivergenceKernelTest, ::testing::ValuesIn(testing::kernel_cases()),
                         testing::case_name);

}  // namespace
}  // namespace tessera
