// The fused head against log_softmax of the whole logits.
#include "worker/model/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/worker/model/test_sink.h"
#include "worker/batch.h"

namespace tessera {
namespace {

HeadLabels labelled(const at::Tensor& labels_T) {
  return {labels_T, at::nonzero(labels_T != kIgnoredLabel).squeeze(1)};
}

struct Result {
  at::Tensor logprobs, entropy, correct, mean_logprobs, grad_hidden, grad_weight;
};

// Backward through sum(logprobs * upstream), each term perhaps times the label's probability, and,
// where it is defined, sum(mean_logprobs * mean).
struct Upstream {
  at::Tensor logprobs;
  at::Tensor mean_logprobs;
  bool times_probability = false;
};

// A chunk of 0: without the fused head. `known` is told to it.
Result run(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
           const Upstream& upstream, int64_t chunk, const KnownGradient& known = {}) {
  const at::Tensor h = hidden.detach().clone().requires_grad_(true);
  const at::Tensor w = weight.detach().clone().requires_grad_(true);
  HeadOutput out;
  if (chunk > 0) {
    out = fused_head(h, w, labelled(labels), chunk, {upstream.mean_logprobs.defined(), known});
  } else {
    const at::Tensor all = at::log_softmax(at::mm(h, w.t()), 1);
    const at::Tensor kept = (labels != kIgnoredLabel).to(at::kFloat);
    out.logprobs_T = all.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1) * kept;
    out.entropy_T = -(all.exp() * all).sum(1).detach() * kept;
    out.correct_T = (all.argmax(1) == labels).to(at::kFloat);
    out.mean_logprobs_T = all.mean(1) * kept;
  }
  at::Tensor terms = out.logprobs_T * upstream.logprobs;
  if (upstream.times_probability) terms = terms * out.logprobs_T.detach().exp();
  at::Tensor loss = terms.sum();
  if (upstream.mean_logprobs.defined())
    loss = loss + (out.mean_logprobs_T * upstream.mean_logprobs).sum();
  torch::autograd::backward({loss}, {});
  return {out.logprobs_T.detach(),
          out.entropy_T,
          out.correct_T,
          upstream.mean_logprobs.defined() ? out.mean_logprobs_T.detach() : at::Tensor(),
          h.grad(),
          w.grad()};
}

void expect_close(const Result& ours, const Result& plain) {
  EXPECT_TRUE(at::allclose(ours.logprobs, plain.logprobs, 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(ours.entropy, plain.entropy, 1e-5, 1e-5));
  EXPECT_TRUE(at::equal(ours.correct, plain.correct));
  ASSERT_EQ(ours.mean_logprobs.defined(), plain.mean_logprobs.defined());
  if (plain.mean_logprobs.defined()) {
    EXPECT_TRUE(at::allclose(ours.mean_logprobs, plain.mean_logprobs, 1e-5, 1e-5));
  }
  EXPECT_TRUE(at::allclose(ours.grad_hidden, plain.grad_hidden, 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(ours.grad_weight, plain.grad_weight, 1e-4, 1e-5));
}

class FusedHead : public ::testing::TestWithParam<int64_t> {};

TEST_P(FusedHead, EqualsTheWholeLogits) {
  const at::Tensor hidden = at::randn({23, 8}), weight = at::randn({41, 8});
  at::Tensor labels = at::randint(0, 41, {23}, at::kLong);
  for (const int64_t ignored : {0, 5, 6, 22}) labels.select(0, ignored).fill_(kIgnoredLabel);
  for (const bool mean : {false, true}) {
    const Upstream upstream{at::randn({23}), mean ? at::randn({23}) : at::Tensor()};
    const Result plain = run(hidden, weight, labels, upstream, 0);
    expect_close(run(hidden, weight, labels, upstream, GetParam()), plain);
    const KnownGradient known{upstream.logprobs, false, upstream.mean_logprobs};
    expect_close(run(hidden, weight, labels, upstream, GetParam(), known), plain);
  }
}

// Beside a mean of log-probabilities that has a gradient, and without.
TEST_P(FusedHead, MeasuresLogitsAndSquaresOfProbabilities) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor hidden = at::randn({23, 8}).to(dtype), weight = at::randn({41, 8}).to(dtype);
    at::Tensor labels = at::randint(0, 41, {23}, at::kLong);
    for (const int64_t ignored : {0, 5, 22}) labels.select(0, ignored).fill_(kIgnoredLabel);
    const at::Tensor kept = (labels != kIgnoredLabel).to(at::kFloat);
    const at::Tensor logits = at::mm(hidden, weight.t()).to(at::kFloat);
    const at::Tensor squares = at::log_softmax(logits, 1).exp().square().sum(1).log();
    for (const bool mean_logprobs : {false, true}) {
      const at::Tensor h = hidden.clone().requires_grad_(true);
      const HeadOutput out = fused_head(
          h, weight, labelled(labels), GetParam(),
          {.mean_logprobs = mean_logprobs, .mean_logits = true, .log_sum_sq_probs = true});
      EXPECT_TRUE(at::allclose(out.mean_logits_T, logits.mean(1) * kept, 1e-5, 1e-5));
      EXPECT_TRUE(at::allclose(out.log_sum_sq_probs_T, squares * kept, 1e-5, 1e-5));
      EXPECT_FALSE(out.mean_logits_T.requires_grad() || out.log_sum_sq_probs_T.requires_grad());
      ASSERT_EQ(out.mean_logprobs_T.defined(), mean_logprobs);
      torch::autograd::backward({mean_logprobs ? out.mean_logprobs_T.sum() : out.logprobs_T.sum()},
                                {});
      EXPECT_GT(h.grad().abs().sum().item<float>(), 0);
    }
  }
}

// As of a loss that weights each label with its probability.
TEST_P(FusedHead, TakesAKnownGradientThatIsAMultipleOfTheProbability) {
  const at::Tensor hidden = at::randn({23, 8}), weight = at::randn({41, 8});
  const at::Tensor labels = at::randint(0, 41, {23}, at::kLong);
  const Upstream upstream{at::randn({23}), {}, /*times_probability=*/true};
  expect_close(run(hidden, weight, labels, upstream, GetParam(), {upstream.logprobs, true, {}}),
               run(hidden, weight, labels, upstream, 0));
}

TEST(FusedHeadEdge, RefusesAGradientOtherThanTheOneItWasTold) {
  const at::Tensor h = at::randn({4, 8}).requires_grad_(true), w = at::randn({5, 8});
  const at::Tensor labels = at::randint(0, 5, {4}, at::kLong), half = at::full({4}, -0.5);
  const HeadOutput out = fused_head(h, w, labelled(labels), 4, {.gradient = {.logprobs_T = half}});
  EXPECT_THROW(torch::autograd::backward({out.logprobs_T.sum()}, {}), c10::Error);
  const HeadOutput both = fused_head(
      h, w, labelled(labels), 4,
      {.mean_logprobs = true, .gradient = {.logprobs_T = half, .mean_logprobs_T = half}});
  EXPECT_THROW(torch::autograd::backward({both.logprobs_T.sum() * -0.5}, {}), c10::Error);
}

// In float32 the sink's memory takes the sum itself; in bfloat16 a sum in float32 is rounded once.
TEST_P(FusedHead, PutsTheGradientOfTheWeightInItsSink) {
  const at::Tensor labels = at::randint(0, 41, {23}, at::kLong), upstream = at::randn({23});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor hidden = at::randn({23, 8}).to(dtype), weight = at::randn({41, 8}).to(dtype);
    const at::Tensor plain =
        run(hidden.to(at::kFloat), weight.to(at::kFloat), labels, {upstream, {}}, /*chunk=*/0)
            .grad_weight;
    for (const at::ScalarType sink_dtype : {at::kFloat, dtype}) {
      for (const bool begun : {false, true}) {
        for (const bool is_known : {false, true}) {
          tessera::testing::TestSink sink(at::full({41, 8}, begun ? 0.5 : NAN, sink_dtype), begun);
          const at::Tensor h = hidden.clone().requires_grad_(true);
          const at::Tensor w = weight.clone().requires_grad_(true);
          const HeadRequest request{.gradient = {is_known ? upstream : at::Tensor()}};
          const HeadOutput out = fused_head(h, w, labelled(labels), GetParam(), request, {&sink});
          EXPECT_EQ(sink.num_done, 0);
          torch::autograd::backward({(out.logprobs_T * upstream).sum()}, {});
          EXPECT_EQ(sink.num_done, 1);
          EXPECT_FALSE(w.grad().defined());
          EXPECT_TRUE(h.grad().defined());
          const double tolerance = dtype == at::kFloat ? 1e-5 : 0.03;
          const at::Tensor error = sink.sum.to(at::kFloat) - (begun ? 0.5 : 0.0) - plain;
          EXPECT_LT(error.abs().max().item<double>(),
                    tolerance * (1 + plain.abs().max().item<double>()));
        }
      }
    }
  }
}

TEST(FusedHeadEdge, ChoosesTheChunkByTheVocabulary) {
  EXPECT_EQ(fitting_chunk_tokens(32'000), 524);
  EXPECT_EQ(fitting_chunk_tokens(151'936), 110);
  EXPECT_EQ(fitting_chunk_tokens(1 << 20), 64);
}

// A chunk that leaves no room for a row of the gradient: 2 * 3 values of bfloat16, and rows of 16.
TEST(FusedHeadEdge, WorksWithAVocabularySmallerThanItsWidth) {
  const at::Tensor h = at::randn({5, 16}).to(at::kBFloat16).requires_grad_(true);
  const at::Tensor w = at::randn({3, 16}).to(at::kBFloat16).requires_grad_(true);
  const at::Tensor labels = at::randint(0, 3, {5}, at::kLong), upstream = at::randn({5});
  const HeadOutput out = fused_head(h, w, labelled(labels), /*chunk_tokens=*/1);
  torch::autograd::backward({(out.logprobs_T * upstream).sum()}, {});
  const at::Tensor plain =
      run(h.detach().to(at::kFloat), w.detach().to(at::kFloat), labels, {upstream, {}}, 0)
          .grad_weight;
  EXPECT_TRUE(at::allclose(w.grad().to(at::kFloat), plain, 0.05, 0.05));
}

INSTANTIATE_TEST_SUITE_P(Chunks, FusedHead, ::testing::Values(1, 4, 19, 512));

TEST(FusedHeadEdge, NoLabelsGiveZerosAndZeroGradients) {
  const at::Tensor hidden = at::randn({3, 8}), weight = at::randn({5, 8});
  const at::Tensor labels = at::full({3}, kIgnoredLabel, at::kLong);
  const Result out = run(hidden, weight, labels, {at::randn({3}), {}}, 4);
  EXPECT_EQ(out.logprobs.abs().sum().item<float>(), 0);
  EXPECT_EQ(out.grad_hidden.abs().sum().item<float>(), 0);
  EXPECT_EQ(out.grad_weight.abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace tessera
