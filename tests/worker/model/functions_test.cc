// Each function against its plain formula under autograd: values and every gradient.
#include "worker/model/functions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

namespace tessera {
namespace {

using Fn = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// Output and input gradients of `fn` under a fixed upstream gradient.
std::vector<at::Tensor> run(const Fn& fn, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.detach().clone().requires_grad_(true));
  const at::Tensor out = fn(leaves);
  const at::Tensor upstream = at::arange(out.numel(), out.options()).sin().view(out.sizes());
  torch::autograd::backward({out}, {upstream});
  std::vector<at::Tensor> results{out.detach()};
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

void expect_same(const Fn& ours, const Fn& plain, const std::vector<at::Tensor>& inputs) {
  const auto a = run(ours, inputs), b = run(plain, inputs);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::allclose(a[i], b[i], 1e-5, 1e-6)) << "result " << i << "\n"
                                                      << (a[i] - b[i]).abs().max();
  }
}

TEST(Functions, RmsNormOnTokens) {
  expect_same([](const auto& in) { return rms_norm(in[0], in[1], 1e-5); },
              [](const auto& in) {
                return in[0] * at::rsqrt(in[0].square().mean(-1, true) + 1e-5) * in[1];
              },
              {at::randn({7, 12}), at::randn({12})});
}

TEST(Functions, RmsNormOnHeadsSumsTheWeightGradientOverTokensAndHeads) {
  expect_same([](const auto& in) { return rms_norm(in[0], in[1], 1e-6); },
              [](const auto& in) {
                return in[0] * at::rsqrt(in[0].square().mean(-1, true) + 1e-6) * in[1];
              },
              {at::randn({5, 3, 8}), at::randn({8})});
}

TEST(Functions, SwiGlu) {
  expect_same([](const auto& in) { return swiglu(in[0], in[1]); },
              [](const auto& in) { return at::silu(in[0]) * in[1]; },
              {at::randn({6, 10}), at::randn({6, 10})});
}

TEST(Functions, RotateTurnsPairsOfHalves) {
  const at::Tensor angle = at::randn({4, 3});
  const at::Tensor cos = angle.cos(), sin = angle.sin();
  expect_same([&](const auto& in) { return rotate(in[0], cos, sin); },
              [&](const auto& in) {
                const at::Tensor full_cos = at::cat({cos, cos}, -1).unsqueeze(1);
                const at::Tensor full_sin = at::cat({sin, sin}, -1).unsqueeze(1);
                const at::Tensor half =
                    at::cat({-in[0].narrow(-1, 3, 3), in[0].narrow(-1, 0, 3)}, -1);
                return in[0] * full_cos + half * full_sin;
              },
              {at::randn({4, 2, 6})});
}

TEST(Functions, BfloatStaysBfloatAndNearTheFloatResult) {
  const at::Tensor x = at::randn({16, 32}), w = at::randn({32});
  const at::Tensor narrow = rms_norm(x.to(at::kBFloat16), w.to(at::kBFloat16), 1e-6);
  EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(narrow.to(at::kFloat), rms_norm(x, w, 1e-6), 3e-2, 3e-2));
}

}  // namespace
}  // namespace tessera
