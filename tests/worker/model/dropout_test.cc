#include "worker/model/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace tessera {
namespace {

TEST(Dropout, ZeroesItsShareAndScalesTheRestUp) {
  const at::Tensor x = at::ones({200, 300});
  const at::Tensor y = seeded_dropout(x, 0.25, 5);
  const at::Tensor kept = y != 0;
  EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 0.75, 5 * std::sqrt(0.1875 / 60000));
  EXPECT_TRUE(at::equal(y, at::where(kept, x / 0.75, x * 0)));
}

TEST(Dropout, BackwardDrawsTheSameMask) {
  const at::Tensor x = at::ones({50, 40}).requires_grad_(true);
  const at::Tensor upstream = at::randn({50, 40});
  const at::Tensor y = seeded_dropout(x, 0.5, 6);
  torch::autograd::backward({y}, {upstream});
  EXPECT_TRUE(at::equal(x.grad(), y.detach() * upstream));
}

TEST(Dropout, OfNothingIsTheIdentity) {
  const at::Tensor x = at::randn({3});
  EXPECT_TRUE(seeded_dropout(x, 0, 7).is_same(x));
}

TEST(Draw, DependsOnEachPartAndItsPlace) {
  EXPECT_EQ(make_draw({1, 2}), make_draw({1, 2}));
  EXPECT_NE(make_draw({1, 2}), make_draw({2, 1}));
  EXPECT_NE(make_draw({1, 2}), make_draw({1, 3}));
  EXPECT_NE(make_draw({1}), make_draw({1, 0}));
}

TEST(Draw, OfAMaskLeavesOtherDrawsAlone) {
  const at::Tensor first = draw_mask({100}, 0.5, 3, at::kFloat);
  at::randn({7});
  EXPECT_TRUE(at::equal(first, draw_mask({100}, 0.5, 3, at::kFloat)));
  EXPECT_FALSE(at::equal(first, draw_mask({100}, 0.5, 4, at::kFloat)));
}

}  // namespace
}  // namespace tessera
