#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <thread>

#include "worker/optim/adamw.h"
#include "worker/optim/gradient_norm.h"

namespace tessera {
namespace {

TEST(ClipScale, IsOneBelowTheLimitAndWithoutOne) {
  EXPECT_EQ(clip_scale(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_scale(100.0, 0.0), 1.0);
  EXPECT_NEAR(clip_scale(4.0, 1.0), 0.25, 1e-6);
}

// Big values first and tiny ones after, as embeddings have: the norm is that of ATen's whole-tensor
// kernel at every size, though the ranks that hold the tiny ones see nothing big.
TEST(GradientNorm, IsThatOfOneRankAtEveryWorldSize) {
  for (const int world_size : {1, 2, 3, 4}) {
    auto groups = make_thread_collectives(world_size);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      ranks.emplace_back([&, rank] {
        Parameter matrix{"matrix", {1000, 300}, {}};
        ReductionQueue reductions;
        ShardedUnit unit("unit", {&matrix}, *groups[rank], reductions, {});
        at::Tensor gradient = (at::arange(300'000, at::kFloat) * 0.37).sin().pow(9);
        gradient.narrow(0, 0, 3000).mul_(40);
        unit.gather();
        torch::autograd::backward({(matrix.value * gradient.view({1000, 300})).sum() / world_size},
                                  {});
        unit.finish_backward();
        reductions.finish();
        const double whole = at::linalg_vector_norm(gradient, 2).item<double>();
        EXPECT_NEAR(gradient_norm({&unit}, *groups[rank]) / whole, 1.0, 5e-6) << world_size;
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
}

// Three steps against the formula of the paper with decoupled decay, written out in double.
TEST(AdamW, FollowsTheFormulaAndDecaysMatricesOnly) {
  Parameter matrix{"matrix", {3, 4}, {}}, vector{"vector", {5}, {}};
  auto group = make_single_collectives();
  ReductionQueue reductions;
  ShardedUnit unit("unit", {&matrix, &vector}, *group, reductions, {});
  unit.shard().copy_(at::arange(unit.shard().numel(), at::kFloat).remainder(17) * 0.1 - 1);
  const AdamW::Options options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  AdamW optimizer({&unit}, options, 0);

  const int64_t vector_offset = unit.layout().entries[1].offset;
  double w[2] = {unit.shard()[2].item<float>(), unit.shard()[vector_offset].item<float>()};
  double m[2] = {0, 0}, v[2] = {0, 0};
  for (int step = 1; step <= 3; ++step) {
    torch::autograd::backward({(matrix.value.square().sum() + vector.value.square().sum()) * step},
                              {});
    unit.finish_backward();
    const double rate = 0.01 * step, scale = 0.5;
    for (int i = 0; i < 2; ++i) {
      const double g = 2 * w[i] * step * scale;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      if (i == 0) w[i] *= 1 - rate * 0.1;
      w[i] -= rate * (m[i] / (1 - std::pow(0.9, step))) /
              (std::sqrt(v[i] / (1 - std::pow(0.95, step))) + 1e-8);
    }
    optimizer.step(rate, scale);
    unit.clear_gradient();
    EXPECT_NEAR(unit.shard()[2].item<float>(), w[0], 1e-6) << step;
    EXPECT_NEAR(unit.shard()[vector_offset].item<float>(), w[1], 1e-6) << step;
  }
}

}  // namespace
}  // namespace tessera
