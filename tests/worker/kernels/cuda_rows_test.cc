// What the CUDA kernels compute of a row, played on the host by a block of so many threads, against
// the kernels of a CPU. The launches themselves need a GPU: cuda_kernels_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/worker/kernels/kernel_test.h"
#include "worker/kernels/cuda/logits.h"
#include "worker/kernels/cuda/quantized.h"
#include "worker/kernels/cuda/rows.h"
#include "worker/kernels/cuda/updates.h"

namespace tessera::cuda {
namespace {

using ::tessera::testing::kTolerance;

// A block whose threads take turns.
struct HostBlock {
  int64_t num_threads;

  template <typename Body>
  void each(int64_t count, const Body& body) const {
    for (int64_t thread = 0; thread < num_threads; ++thread) {
      for (int64_t i = thread; i < count; i += num_threads) body(i);
    }
  }
  template <int N, typename Body>
  Sums<N> sum(int64_t count, const Body& body) const {
    Sums<N> total{};
    for (int64_t thread = 0; thread < num_threads; ++thread) {
      Sums<N> part{};
      for (int64_t i = thread; i < count; i += num_threads) {
        const Sums<N> more = body(i);
        for (int n = 0; n < N; ++n) part.of[n] += more.of[n];
      }
      for (int n = 0; n < N; ++n) total.of[n] += part.of[n];
    }
    return total;
  }
  template <typename Body>
  float largest(int64_t count, const Body& body) const {
    float most = -std::numeric_limits<float>::infinity();
    each(count, [&](int64_t i) { most = std::max(most, body(i)); });
    return most;
  }
  template <typename Body>
  void once(const Body& body) const {
    body();
  }
};

struct RowCase {
  int64_t width, num_threads;
};

std::vector<RowCase> row_cases() {
  std::vector<RowCase> cases;
  for (const int64_t width : {1, 3, 8, 64, 120, 129, 4104}) {
    for (const int64_t num_threads : {1, 32, 512}) cases.push_back({width, num_threads});
  }
  return cases;
}

class CudaRowsTest : public ::testing::TestWithParam<RowCase> {
 protected:
  template <typename T>
  std::vector<T> make(unsigned seed, int64_t count = 0) const {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    std::vector<T> values(count == 0 ? width_ : count);
    for (T& value : values) value = ::tessera::testing::rounded<T>(normal(random));
    return values;
  }

  // check(lanes, a value of T) for each type, one value at a time and as many as are loaded at
  // once.
  template <typename Check>
  void for_types_and_lanes(const Check& check) const {
    check(std::integral_constant<int, 1>{}, float{});
    check(std::integral_constant<int, 1>{}, Bfloat{});
    if (width_ % 8 != 0) return;
    check(std::integral_constant<int, 4>{}, float{});
    check(std::integral_constant<int, 8>{}, Bfloat{});
  }

  const int64_t width_ = GetParam().width;
  const HostBlock block_{GetParam().num_threads};
};

template <typename T>
void expect_close(const std::vector<T>& actual, const std::vector<T>& expected, double scale = 4) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double want = ::tessera::testing::to_double(expected[i]);
    ASSERT_NEAR(::tessera::testing::to_double(actual[i]), want,
                kTolerance<T> * scale * (1 + std::abs(want)))
        << i;
  }
}

TEST(CudaRounding, IsThatOfTheCpu) {
  for (uint32_t raw = 0; raw < 0x1000000; raw += 97) {
    const float value = float_of(raw * 251);
    if (value != value) continue;
    EXPECT_EQ(narrowed<Bfloat>(value).bits, ::tessera::testing::rounded<Bfloat>(value).bits);
  }
  EXPECT_TRUE(std::isnan(widened(narrowed<Bfloat>(float_of(0x7f800001)))));
}

TEST_P(CudaRowsTest, RmsNorm) {
  for_types_and_lanes([&](auto lanes, auto type) {
    using T = decltype(type);
    const auto x = make<T>(1), weight = make<T>(2), upstream = make<T>(3), beside = make<T>(4);
    std::vector<T> y(width_), expected(width_);
    rms_norm_row<lanes>(block_, y.data(), x.data(), weight.data(), 1e-5f, width_);
    const auto& twin = cpu_kernels().of<T>();
    twin.rms_norm({expected.data(), 0}, {x.data(), 0}, weight.data(), 1e-5f, 1, width_);
    expect_close(y, expected);
    // Two rows for one gradient of the weight; what is there before is not read.
    std::vector<float> grad_weight(width_, 77.0f), expected_weight(width_, 0.0f);
    for (const T* residual : {static_cast<const T*>(nullptr), beside.data()}) {
      rms_norm_backward_row<lanes>(block_, y.data(), grad_weight.data(), residual == nullptr,
                                   upstream.data(), x.data(), weight.data(), residual, 1e-5f,
                                   width_);
      twin.rms_norm_backward({expected.data(), 0}, expected_weight.data(), {upstream.data(), 0},
                             {x.data(), 0}, weight.data(), {residual, 0}, 1e-5f, 1, width_);
      // A row of one value has a scale of 1 / |x|, and its gradient cancels.
      expect_close(y, expected, 100);
    }
    expect_close(grad_weight, expected_weight, 10);
  });
}

TEST_P(CudaRowsTest, Rotate) {
  constexpr int64_t kHeads = 3;
  for_types_and_lanes([&](auto lanes, auto type) {
    using T = decltype(type);
    const auto x = make<T>(1, 2 * kHeads * 2 * width_), cosine = make<T>(2), sine = make<T>(3);
    // The second of two tokens, in place.
    const int64_t row = 2 * width_, token = kHeads * row;
    for (const bool back : {false, true}) {
      auto y = x, expected = x;
      rotate_token<lanes>(block_, TokenRows<T>{y.data(), token, row, kHeads},
                          TokenRows<const T>{y.data(), token, row, kHeads}, kHeads, cosine.data(),
                          sine.data(), back, width_);
      T* const second = expected.data() + token;
      cpu_kernels().of<T>().rotate({second, row}, {second, row}, cosine.data(), sine.data(), back,
                                   kHeads, width_);
      expect_close(y, expected);
    }
  });
}

TEST_P(CudaRowsTest, SwiGlu) {
  for_types_and_lanes([&](auto lanes, auto type) {
    using T = decltype(type);
    auto gate = make<T>(1);
    const auto up = make<T>(2), grad = make<T>(3);
    gate.front() = ::tessera::testing::rounded<T>(-200);
    const auto& twin = cpu_kernels().of<T>();
    std::vector<T> h(width_), expected(width_), to_gate(width_), to_up(width_), again(width_);
    swiglu_row<lanes>(block_, h.data(), gate.data(), up.data(), width_);
    twin.swiglu({expected.data(), 0}, {gate.data(), 0}, {up.data(), 0}, 1, width_);
    expect_close(h, expected);
    swiglu_backward_row<lanes>(block_, to_gate.data(), to_up.data(), again.data(), grad.data(),
                               gate.data(), up.data(), width_);
    expect_close(again, h);
    std::vector<T> expected_up(width_);
    twin.swiglu_backward({expected.data(), 0}, {expected_up.data(), 0}, {nullptr, 0},
                         {grad.data(), 0}, {gate.data(), 0}, {up.data(), 0}, 1, width_);
    expect_close(to_gate, expected);
    expect_close(to_up, expected_up);
  });
}

TEST_P(CudaRowsTest, LabelsAndTheirGradient) {
  for_types_and_lanes([&](auto lanes, auto type) {
    using T = decltype(type);
    auto logits = make<T>(1);
    if (width_ > 20) logits[3] = logits[20] = ::tessera::testing::rounded<T>(9);
    for (const int64_t label : {int64_t{0}, std::min<int64_t>(width_ - 1, 3),
                                std::min<int64_t>(width_ - 1, 20), width_ - 1}) {
      std::vector<float> exps(width_), expected_exps(width_), stats(7);
      float* const of = stats.data();
      const LabelStatsRows rows{of, of + 1, of + 2, of + 3, of + 4, of + 5, of + 6};
      label_stats_row<lanes>(block_, rows, 0, exps.data(), logits.data(), label, width_);
      const auto& twin = cpu_kernels().of<T>();
      const LabelStats want =
          twin.label_stats(expected_exps.data(), logits.data(), label, width_, true);
      expect_close(stats,
                   {want.logprob, want.mean_logprob, want.entropy, want.correct, want.sum_of_exps,
                    want.mean_logit, want.log_sum_sq},
                   10);
      EXPECT_EQ(stats[3], want.correct);
      expect_close(exps, expected_exps);
      std::vector<T> gradient(width_), expected(width_);
      logit_gradient_row<lanes>(block_, gradient.data(), exps.data(), stats[4], -0.7f, 0.2f, label,
                                width_);
      twin.logit_gradient(expected.data(), expected_exps.data(), want.sum_of_exps, -0.7f, 0.2f,
                          label, width_);
      expect_close(gradient, expected);
    }
  });
}

constexpr AdamWStep kStep{0.5f, 0.999f, 0.1f, 0.01f, 0.03f, 0.3f, 1e-8f};

std::vector<float> sizes_of(std::vector<float> values) {
  for (float& value : values) value = std::abs(value);
  return values;
}

TEST_P(CudaRowsTest, AdamW) {
  const auto gradient = make<float>(4);
  auto w = make<float>(1), m = make<float>(2), v = sizes_of(make<float>(3));
  auto twin_w = w, twin_m = m, twin_v = v;
  const auto run = [&](auto lanes) {
    for (int64_t i = 0; i < width_ / lanes; ++i)
      adamw_lanes<lanes>(w.data(), m.data(), v.data(), gradient.data(), kStep, i);
    cpu_kernels().adamw(twin_w.data(), twin_m.data(), twin_v.data(), gradient.data(), kStep,
                        width_);
    expect_close(w, twin_w);
    expect_close(m, twin_m);
    expect_close(v, twin_v);
  };
  run(std::integral_constant<int, 1>{});
  if (width_ % 4 == 0) run(std::integral_constant<int, 4>{});
}

TEST_P(CudaRowsTest, AdamWInBfloat) {
  const auto gradient = make<float>(4);
  auto w = make<float>(1), twin_w = w;
  auto m = make<Bfloat>(2), v = make<Bfloat>(3);
  for (Bfloat& value : v) value.bits &= 0x7fff;
  auto twin_m = m, twin_v = v;
  for (int64_t i = 0; i < width_; ++i)
    adamw_bfloat_value(w.data(), m.data(), v.data(), gradient.data(), kStep, 12345, i);
  cpu_kernels().adamw_bfloat(twin_w.data(), twin_m.data(), twin_v.data(), gradient.data(), kStep,
                             12345, width_);
  expect_close(w, twin_w);
  // The same draws: the same bits, unless the sums before them differ in their last.
  const auto num_other = [](const std::vector<Bfloat>& a, const std::vector<Bfloat>& b) {
    int64_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i].bits != b[i].bits;
    return count;
  };
  EXPECT_LE(num_other(m, twin_m) + num_other(v, twin_v), width_ / 500);
  expect_close(m, twin_m);
  expect_close(v, twin_v);
}

TEST_P(CudaRowsTest, AdamWInEightBits) {
  const auto gradient = make<float>(4);
  const DynamicMap &signs = signed_dynamic_map(), &sizes = unsigned_dynamic_map();
  const int64_t blocks = (width_ + kAdamWBlock - 1) / kAdamWBlock;
  std::vector<uint8_t> m(width_), v(width_);
  std::mt19937 random(5);
  for (int64_t i = 0; i < width_; ++i) {
    m[i] = static_cast<uint8_t>(random());
    v[i] = static_cast<uint8_t>(random());
  }
  std::vector<float> m_scales(blocks, 0.5f), v_scales(blocks, 0.25f);
  auto w = make<float>(1), twin_w = w;
  auto twin_m = m, twin_v = v;
  auto twin_m_scales = m_scales, twin_v_scales = v_scales;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kAdamWBlock;
    float means[kAdamWBlock], squares[kAdamWBlock];
    adamw_int8_block(block_, means, squares, w.data() + begin, {&m[begin], &m_scales[block]},
                     {&v[begin], &v_scales[block]}, gradient.data() + begin, signs, sizes, kStep,
                     std::min(kAdamWBlock, width_ - begin));
  }
  cpu_kernels().adamw_int8(twin_w.data(), {&signs, twin_m.data(), twin_m_scales.data()},
                           {&sizes, twin_v.data(), twin_v_scales.data()}, gradient.data(), kStep,
                           width_);
  expect_close(w, twin_w);
  expect_close(m_scales, twin_m_scales);
  expect_close(v_scales, twin_v_scales);
  int64_t others = 0;
  for (int64_t i = 0; i < width_; ++i) {
    EXPECT_LE(std::abs(m[i] - twin_m[i]), 1) << i;
    EXPECT_LE(std::abs(v[i] - twin_v[i]), 1) << i;
    others += (m[i] != twin_m[i]) + (v[i] != twin_v[i]);
  }
  EXPECT_LE(others, width_ / 500);
}

TEST(CudaEightBits, CodesOfEverySizeAreThoseOfTheCpu) {
  for (const DynamicMap* map : {&signed_dynamic_map(), &unsigned_dynamic_map()}) {
    for (int code = 0; code < DynamicMap::kNumCodes; ++code)
      EXPECT_EQ(code_of(map->values[code], 1.0f, *map), code) << map->is_signed;
    EXPECT_EQ(code_of(0.0f, 0.0f, *map), map->zero);
  }
  EXPECT_EQ(code_of(-1e-30f, 1.0f, signed_dynamic_map()), signed_dynamic_map().zero - 1);
}

// Lanes of one run: of a matrix that begins before it, whose last byte may be half used.
template <typename T>
void check_nf4(bool nested, int64_t begin, int64_t count) {
  std::mt19937 random(1);
  const int64_t end = begin + count, blocks = (end + kNf4Block - 1) / kNf4Block;
  std::vector<uint8_t> codes((end + 1) / 2), scale_codes(blocks);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
  for (uint8_t& code : scale_codes) code = static_cast<uint8_t>(random());
  const std::vector<float> groups{0.5f, 0.25f, 2.0f};
  const float mean = 1.5f;
  std::vector<float> scales;
  for (int64_t block = 0; block < blocks; ++block) {
    scales.push_back(
        signed_dynamic_map().values[scale_codes[block]] * groups[block / kNf4ScaleGroup] + mean);
  }
  Nf4Tables tables;
  std::copy_n(kNf4Values, 16, tables.values);
  std::copy_n(signed_dynamic_map().values, DynamicMap::kNumCodes, tables.scales);
  const Nf4Parts parts{codes.data(), scales.data(), scale_codes.data(),
                       nested ? groups.data() : nullptr, &mean};
  std::vector<T> out(count), expected(end);
  cpu_kernels().of<T>().dequantize_nf4(expected.data(), codes.data(), scales.data(), end);
  expected.erase(expected.begin(), expected.begin() + begin);
  for (int64_t i = 0; i * 8 < count; ++i)
    dequantize_nf4_lanes<8>(out.data(), parts, tables, begin, i, count);
  expect_close(out, expected, 0.1);
  for (int64_t i = 0; i * 2 < count; ++i)
    dequantize_nf4_lanes<2>(out.data(), parts, tables, begin, i, count);
  expect_close(out, expected, 0.1);
}

TEST(CudaQuantized, Nf4) {
  for (const bool nested : {false, true}) {
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 64},
                                       {128, 70},
                                       {64, 1},
                                       {kNf4Block * kNf4ScaleGroup, 8193}}) {
      check_nf4<float>(nested, begin, count);
      check_nf4<Bfloat>(nested, begin, count);
    }
  }
}

TEST(CudaQuantized, Int8) {
  constexpr int64_t kWidth = 5, kBegin = 10, kCount = 13;
  std::vector<int8_t> codes(kBegin + kCount);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int8_t>(11 * i - 128);
  const std::vector<float> scales{1, 2, 3, 4, 5};
  std::vector<float> out(kCount);
  for (int64_t i = 0; i < kCount; ++i)
    dequantize_int8_value(out.data(), codes.data(), scales.data(), 0.25f, kBegin, kWidth, i);
  for (int64_t i = 0; i < kCount; ++i)
    EXPECT_EQ(out[i], codes[kBegin + i] * scales[(kBegin + i) / kWidth] * 0.25f);
}

INSTANTIATE_TEST_SUITE_P(Rows, CudaRowsTest, ::testing::ValuesIn(row_cases()),
                         [](const auto& info) {
                           return std::to_string(info.param.width) + "_by_" +
                                  std::to_string(info.param.num_threads);
                         });

}  // namespace
}  // namespace tessera::cuda
