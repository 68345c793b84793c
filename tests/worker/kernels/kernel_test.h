// What tests of the CPU kernels share: each is run on every table that this machine can run, with
// rows of many widths.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "worker/kernels/cpu_kernels.h"

namespace tessera::testing {

inline double to_double(float value) { return value; }
inline double to_double(Bfloat value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

template <typename T>
T rounded(double value) {
  const auto narrow = static_cast<float>(value);
  if constexpr (std::is_same_v<T, float>) {
    return narrow;
  } else {
    const auto raw = std::bit_cast<uint32_t>(narrow);
    return {static_cast<uint16_t>((raw + 0x7fff + ((raw >> 16) & 1)) >> 16)};
  }
}

// Rows with a gap after each, which must stay as it is.
template <typename T>
struct Matrix {
  Matrix(int64_t num_rows, int64_t width, unsigned seed)
      : num_rows(num_rows), width(width), stride(width + 3), values(num_rows * stride) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (T& value : values) value = rounded<T>(normal(random));
    before = values;
  }
  T* data() { return values.data(); }
  Rows<T> rows() { return {values.data(), stride}; }
  Rows<const T> rows() const { return {values.data(), stride}; }
  double at(int64_t row, int64_t i) const { return to_double(values[row * stride + i]); }
  bool gaps_are_whole() const {
    for (size_t i = 0; i < values.size(); ++i) {
      if (static_cast<int64_t>(i) % stride >= width &&
          to_double(values[i]) != to_double(before[i])) {
        return false;
      }
    }
    return true;
  }

  int64_t num_rows, width, stride;
  std::vector<T> values, before;
};

template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? 2e-6 : 1.2e-2;

template <typename T>
void expect_near(const Matrix<T>& actual, const std::vector<double>& expected, double scale = 1) {
  ASSERT_TRUE(actual.gaps_are_whole());
  for (int64_t row = 0; row < actual.num_rows; ++row) {
    for (int64_t i = 0; i < actual.width; ++i) {
      const double want = expected[row * actual.width + i];
      ASSERT_NEAR(actual.at(row, i), want, kTolerance<T> * scale * (1 + std::abs(want)))
          << "row " << row << ", value " << i;
    }
  }
}

struct KernelCase {
  CpuSet set;
  int64_t num_rows, width;
};

inline std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> list;
  for (const CpuSet set : {CpuSet::kBaseline, CpuSet::kAvx2, CpuSet::kAvx512}) {
    for (const int64_t width : {1, 2, 3, 15, 16, 17, 31, 64, 129, 4100}) {
      for (const int64_t num_rows : {1, 5}) list.push_back({set, num_rows, width});
    }
  }
  return list;
}

class KernelTest : public ::testing::TestWithParam<KernelCase> {
 protected:
  void SetUp() override {
    kernels_ = cpu_kernels(GetParam().set);
    if (kernels_ == nullptr) GTEST_SKIP() << "this machine cannot run it";
  }
  template <typename T>
  const CpuTypedKernels<T>& of() const {
    return kernels_->of<T>();
  }
  template <typename T>
  Matrix<T> make(unsigned seed) const {
    return Matrix<T>(num_rows_, width_, seed);
  }
  std::vector<double> table(const auto& value) const {
    std::vector<double> values;
    for (int64_t row = 0; row < num_rows_; ++row) {
      for (int64_t i = 0; i < width_; ++i) values.push_back(value(row, i));
    }
    return values;
  }

  const CpuKernels* kernels_ = nullptr;
  const int64_t num_rows_ = GetParam().num_rows, width_ = GetParam().width;
};

inline std::string case_name(const ::testing::TestParamInfo<KernelCase>& info) {
  const char* const names[] = {"baseline", "avx2", "avx512"};
  return std::string(names[static_cast<int>(info.param.set)]) + "_" +
         std::to_string(info.param.num_rows) + "x" + std::to_string(info.param.width);
}

}  // namespace tessera::testing
