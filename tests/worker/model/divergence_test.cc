// The fused divergence against whole logits in double precision.
#include "worker/model/divergence.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tests/worker/model/test_sink.h"
#include "worker/kernels/meta_operators.h"
#include "worker/kernels/stand_in.h"
#include "worker/memory/cpu_scratch.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

using tessera::testing::TestSink;

// Before any tensor of the process.
MemoryLedger& real = MemoryLedger::install();
MemoryLedger& meta = MemoryLedger::install_meta();

constexpr int64_t kTokens = 23, kVocabulary = 41, kStudentWidth = 8, kTeacherWidth = 6;

LogitFactors factors(int64_t width, at::ScalarType dtype) {
  return {at::randn({kTokens, width}).to(dtype), at::randn({kVocabulary, width}).to(dtype)};
}

at::Tensor some_rows() { return at::tensor({1, 2, 3, 7, 8, 12, 13, 14, 20, 22}, at::kLong); }

at::Tensor log_probabilities(const LogitFactors& head) {
  return at::log_softmax(at::mm(head.hidden_TD, head.weight_VD.t()), 1);
}

// In the dtype of the factors, with autograd.
at::Tensor plain_divergence(const LogitFactors& student, const LogitFactors& teacher, double beta) {
  const at::Tensor log_p = log_probabilities(student), log_q = log_probabilities(teacher);
  const auto kl = [](const at::Tensor& log_a, const at::Tensor& log_b) {
    return (log_a.exp() * (log_a - log_b)).sum(1);
  };
  if (beta == 0) return kl(log_q, log_p);
  if (beta == 1) return kl(log_p, log_q);
  const at::Tensor log_m = at::logaddexp(log_p + std::log1p(-beta), log_q + std::log(beta));
  return beta * kl(log_q, log_m) + (1 - beta) * kl(log_p, log_m);
}

struct Result {
  at::Tensor divergence, grad_hidden, grad_weight;
};

LogitFactors leaves(const LogitFactors& head, at::ScalarType dtype) {
  const auto leaf = [&](const at::Tensor& x) {
    return x.detach().to(dtype).clone().requires_grad_(true);
  };
  return {leaf(head.hidden_TD), leaf(head.weight_VD)};
}

Result plain(const LogitFactors& student, const LogitFactors& teacher, double beta,
             const at::Tensor& upstream) {
  const LogitFactors exact = leaves(student, at::kDouble);
  const LogitFactors exact_teacher{teacher.hidden_TD.to(at::kDouble),
                                   teacher.weight_VD.to(at::kDouble)};
  const at::Tensor rows = some_rows();
  const at::Tensor divergence = plain_divergence(exact, exact_teacher, beta).index_select(0, rows);
  torch::autograd::backward({(divergence * upstream.index_select(0, rows)).sum()}, {});
  return {at::zeros({kTokens}, at::kDouble).index_copy(0, rows, divergence.detach()),
          exact.hidden_TD.grad(), exact.weight_VD.grad()};
}

Result fused(const LogitFactors& student, const LogitFactors& teacher, double beta,
             const at::Tensor& upstream, int64_t chunk_tokens) {
  const LogitFactors trained = leaves(student, student.hidden_TD.scalar_type());
  const at::Tensor divergence =
      fused_divergence(trained, teacher, some_rows(), chunk_tokens, {beta, upstream});
  torch::autograd::backward({(divergence * upstream).sum()}, {});
  return {divergence.detach(), trained.hidden_TD.grad(), trained.weight_VD.grad()};
}

void expect_near(const at::Tensor& found, const at::Tensor& expected, double tolerance,
                 const char* what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const double error = (found.to(at::kDouble) - expected).abs().max().item<double>();
  EXPECT_LE(error, tolerance * expected.abs().max().item<double>()) << what;
}

struct Case {
  double beta;
  int64_t chunk_tokens;
  at::ScalarType dtype;
};

class FusedDivergence : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { at::manual_seed(7); }
};

TEST_P(FusedDivergence, EqualsTheWholeLogitsInDoublePrecision) {
  const auto [beta, chunk_tokens, dtype] = GetParam();
  const LogitFactors student = factors(kStudentWidth, dtype),
                     teacher = factors(kTeacherWidth, dtype);
  const at::Tensor upstream = at::rand({kTokens});
  const Result expected = plain(student, teacher, beta, upstream);
  const Result found = fused(student, teacher, beta, upstream, chunk_tokens);
  const double tolerance = dtype == at::kBFloat16 ? 4e-2 : 2e-6;
  expect_near(found.divergence, expected.divergence, tolerance, "divergence");
  expect_near(found.grad_hidden, expected.grad_hidden, tolerance, "gradient of the hidden states");
  expect_near(found.grad_weight, expected.grad_weight, tolerance, "gradient of the weight");
}

TEST_P(FusedDivergence, PutsTheGradientOfTheWeightInItsSink) {
  const auto [beta, chunk_tokens, dtype] = GetParam();
  const LogitFactors student = factors(kStudentWidth, dtype),
                     teacher = factors(kTeacherWidth, dtype);
  const at::Tensor upstream = at::rand({kTokens});
  const at::Tensor expected = plain(student, teacher, beta, upstream).grad_weight;
  for (const bool begun : {false, true}) {
    TestSink sink(at::full({kVocabulary, kStudentWidth}, begun ? 0.5 : NAN), begun);
    const LogitFactors trained = leaves(student, dtype);
    const at::Tensor divergence =
        fused_divergence(trained, teacher, some_rows(), chunk_tokens, {beta, upstream}, {&sink});
    EXPECT_EQ(sink.num_done, 0);
    torch::autograd::backward({(divergence * upstream).sum()}, {});
    EXPECT_EQ(sink.num_done, 1);
    EXPECT_FALSE(trained.weight_VD.grad().defined());
    expect_near(sink.sum - (begun ? 0.5 : 0.0), expected, dtype == at::kBFloat16 ? 4e-2 : 1e-5,
                "sink");
  }
}

TEST_P(FusedDivergence, WithoutAutogradGivesTheSameValues) {
  const auto [beta, chunk_tokens, dtype] = GetParam();
  const LogitFactors student = factors(kStudentWidth, dtype),
                     teacher = factors(kTeacherWidth, dtype);
  const at::Tensor upstream = at::rand({kTokens});
  const at::Tensor trained = fused(student, teacher, beta, upstream, chunk_tokens).divergence;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor evaluated =
      fused_divergence(student, teacher, some_rows(), chunk_tokens, {beta});
  EXPECT_TRUE(evaluated.equal(trained));
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const double beta : {0.0, 0.3, 0.5, 1.0}) {
    for (const int64_t chunk_tokens : {1, 4, 512}) {
      // kDouble: ATen's operators do the work, in float32, as on other devices.
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble})
        list.push_back({beta, chunk_tokens, dtype});
    }
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Cases, FusedDivergence, ::testing::ValuesIn(cases()));

// Moves one hidden value and one weight a little, in double precision.
class FusedDivergenceSlope : public ::testing::TestWithParam<double> {};

TEST_P(FusedDivergenceSlope, IsThatOfFiniteDifferences) {
  const double beta = GetParam();
  const LogitFactors student = factors(kStudentWidth, at::kFloat),
                     teacher = factors(kTeacherWidth, at::kFloat);
  const at::Tensor upstream = at::rand({kTokens}), rows = some_rows();
  const Result found = fused(student, teacher, beta, upstream, /*chunk_tokens=*/4);
  constexpr double kStep = 1e-5;
  const LogitFactors exact_teacher{teacher.hidden_TD.to(at::kDouble),
                                   teacher.weight_VD.to(at::kDouble)};
  const auto loss = [&](int64_t row, int64_t column, bool of_weight, double step) {
    LogitFactors moved{student.hidden_TD.to(at::kDouble), student.weight_VD.to(at::kDouble)};
    (of_weight ? moved.weight_VD : moved.hidden_TD)[row][column] += step;
    const at::Tensor divergence = plain_divergence(moved, exact_teacher, beta);
    return (divergence * upstream).index_select(0, rows).sum().item<double>();
  };
  for (const bool of_weight : {false, true}) {
    const at::Tensor& gradient = of_weight ? found.grad_weight : found.grad_hidden;
    for (const auto& [row, column] : {std::pair<int64_t, int64_t>{2, 3}, {22, 7}, {7, 0}}) {
      const double slope =
          (loss(row, column, of_weight, kStep) - loss(row, column, of_weight, -kStep)) /
          (2 * kStep);
      EXPECT_NEAR(gradient[row][column].item<double>(), slope, 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Betas, FusedDivergenceSlope, ::testing::Values(0.0, 0.3, 0.5, 1.0));

LogitFactors on(const LogitFactors& head, at::Device device) {
  const auto move = [&](const at::Tensor& x) {
    return x.detach().to(device).requires_grad_(x.requires_grad());
  };
  return {move(head.hidden_TD), move(head.weight_VD)};
}

// Bytes above what was there before, at the peak of a forward and backward.
int64_t peak_bytes(MemoryLedger& ledger, const LogitFactors& student, const LogitFactors& teacher,
                   const at::Tensor& rows, int64_t chunk_tokens) {
  const at::Tensor upstream =
      at::zeros({student.hidden_TD.size(0)}, student.hidden_TD.options().dtype(at::kFloat));
  const int64_t before = ledger.snapshot().current_bytes;
  ledger.reset_peak();
  const at::Tensor divergence =
      fused_divergence(student, teacher, rows, chunk_tokens, {0.5, upstream});
  torch::autograd::backward({(divergence * upstream).sum()}, {});
  return ledger.snapshot().peak_bytes - before;
}

TEST(FusedDivergenceMemory, IsTwoChunksOfLogitsAndTheSameInARehearsal) {
  constexpr int64_t kRows = 512, kWords = 2000, kWidth = 16, kChunk = 64;
  const at::Tensor rows = at::arange(kRows, at::kLong);
  const StandInScope stand_in(StandIn{});
  register_meta_operators();
  const CpuScratchScope scratch;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto make = [&](int64_t width) {
      return LogitFactors{at::randn({kRows, width}).to(dtype),
                          at::randn({kWords, width}).to(dtype)};
    };
    const LogitFactors student = leaves(make(kWidth), dtype), teacher = make(kWidth / 2);
    const int64_t real_peak = peak_bytes(real, student, teacher, rows, kChunk);
    const int64_t rehearsed_peak = peak_bytes(meta, on(student, at::kMeta), on(teacher, at::kMeta),
                                              rows.to(at::kMeta), kChunk);
    // In bfloat16 oneDNN's products take scratch beside, which docs/memory.md speaks of.
    if (dtype == at::kFloat) {
      EXPECT_EQ(rehearsed_peak, real_peak);
    } else {
      EXPECT_LE(rehearsed_peak, real_peak);
    }
    const auto element = static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t logits = 2 * kChunk * kWords * element;
    const int64_t weight = kWords * kWidth * (element + (element == 4 ? 0 : 4));
    EXPECT_GE(real_peak, logits);
    EXPECT_LE(real_peak, logits + weight + 8 * kRows * kWidth * 4);
    EXPECT_LT(real_peak, kRows * kWords * element) << "one model's logits whole";
  }
}

TEST(FusedDivergenceEdge, NoLabelsGiveZerosAndZeroGradients) {
  const LogitFactors student = leaves(factors(kStudentWidth, at::kFloat), at::kFloat);
  const LogitFactors teacher = factors(kTeacherWidth, at::kFloat);
  const at::Tensor upstream = at::rand({kTokens});
  const at::Tensor divergence =
      fused_divergence(student, teacher, at::empty({0}, at::kLong), 4, {0.5, upstream});
  torch::autograd::backward({(divergence * upstream).sum()}, {});
  EXPECT_EQ(divergence.abs().sum().item<float>(), 0);
  EXPECT_EQ(student.hidden_TD.grad().abs().sum().item<float>(), 0);
  EXPECT_EQ(student.weight_VD.grad().abs().sum().item<float>(), 0);
}

TEST(FusedDivergenceEdge, RefusesAGradientOtherThanTheOneItWasTold) {
  const LogitFactors student = leaves(factors(kStudentWidth, at::kFloat), at::kFloat);
  const LogitFactors teacher = factors(kTeacherWidth, at::kFloat);
  const at::Tensor divergence =
      fused_divergence(student, teacher, some_rows(), 4, {0.5, at::full({kTokens}, 0.5)});
  EXPECT_THROW(torch::autograd::backward({divergence.sum()}, {}), c10::Error);
  EXPECT_THROW(fused_divergence(student, teacher, some_rows(), 4, {0.5}), c10::Error);
}

TEST(FusedDivergenceEdge, RefusesAnotherVocabulary) {
  const c10::AutoGradMode no_grad(false);
  const LogitFactors student = factors(kStudentWidth, at::kFloat);
  const LogitFactors teacher{at::randn({kTokens, 5}), at::randn({kVocabulary + 1, 5})};
  EXPECT_THROW(fused_divergence(student, teacher, some_rows(), 4, {0.5}), c10::Error);
}

}  // namespace
}  // namespace tessera
