// The fused head against log_softmax of the whole logits.
#include "worker/model/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "worker/batch.h"

namespace tessera {
namespace {

struct Result {
  at::Tensor logprobs, entropy, correct, grad_hidden, grad_weight;
};

Result run(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
           const at::Tensor& upstream, int64_t chunk, bool known = false) {
  const at::Tensor h = hidden.detach().clone().requires_grad_(true);
  const at::Tensor w = weight.detach().clone().requires_grad_(true);
  HeadOutput out;
  if (chunk > 0) {
    out = fused_head(h, w, labels, chunk, known ? upstream : at::Tensor());
  } else {
    const at::Tensor all = at::log_softmax(at::mm(h, w.t()), 1);
    const at::Tensor kept = (labels != kIgnoredLabel).to(at::kFloat);
    out.logprobs_T = all.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1) * kept;
    out.entropy_T = -(all.exp() * all).sum(1).detach() * kept;
    out.correct_T = (all.argmax(1) == labels).to(at::kFloat);
  }
  torch::autograd::backward({(out.logprobs_T * upstream).sum()}, {});
  return {out.logprobs_T.detach(), out.entropy_T, out.correct_T, h.grad(), w.grad()};
}

class FusedHead : public testing::TestWithParam<int64_t> {};

TEST_P(FusedHead, EqualsTheWholeLogits) {
  const at::Tensor hidden = at::randn({23, 8}), weight = at::randn({41, 8}),
                   upstream = at::randn({23});
  at::Tensor labels = at::randint(0, 41, {23}, at::kLong);
  for (const int64_t ignored : {0, 5, 6, 22}) labels.select(0, ignored).fill_(kIgnoredLabel);
  const Result plain = run(hidden, weight, labels, upstream, 0);
  for (const bool known : {false, true}) {
    const Result ours = run(hidden, weight, labels, upstream, GetParam(), known);
    EXPECT_TRUE(at::allclose(ours.logprobs, plain.logprobs, 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(ours.entropy, plain.entropy, 1e-5, 1e-5));
    EXPECT_TRUE(at::equal(ours.correct, plain.correct));
    EXPECT_TRUE(at::allclose(ours.grad_hidden, plain.grad_hidden, 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(ours.grad_weight, plain.grad_weight, 1e-4, 1e-5));
  }
}

TEST(FusedHeadEdge, RefusesAGradientOtherThanTheOneItWasTold) {
  const at::Tensor h = at::randn({4, 8}).requires_grad_(true), w = at::randn({5, 8});
  const at::Tensor labels = at::randint(0, 5, {4}, at::kLong);
  const HeadOutput out = fused_head(h, w, labels, 4, at::full({4}, -0.5));
  EXPECT_THROW(torch::autograd::backward({out.logprobs_T.sum()}, {}), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(Chunks, FusedHead, testing::Values(1, 4, 19, 512));

TEST(FusedHeadEdge, NoLabelsGiveZerosAndZeroGradients) {
  const at::Tensor hidden = at::randn({3, 8}), weight = at::randn({5, 8});
  const at::Tensor labels = at::full({3}, kIgnoredLabel, at::kLong);
  const Result out = run(hidden, weight, labels, at::randn({3}), 4);
  EXPECT_EQ(out.logprobs.abs().sum().item<float>(), 0);
  EXPECT_EQ(out.grad_hidden.abs().sum().item<float>(), 0);
  EXPECT_EQ(out.grad_weight.abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace tessera
