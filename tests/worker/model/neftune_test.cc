// The noise on embeddings: how large, how spread, and when the same.
#include "worker/model/neftune.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

constexpr int64_t kWidth = 64;
constexpr double kAlpha = 5;

// Gives zeros, so that only noise is seen.
class Zeros : public Layer {
 public:
  at::Tensor forward(const at::Tensor& tokens_T, const Stream&) override {
    return at::zeros({tokens_T.size(0), kWidth}, at::kFloat);
  }
  std::vector<Parameter*> parameters() override { return {}; }
};

class NoisyEmbedding : public testing::Test {
 protected:
  at::Tensor noise(uint64_t draw, bool training = true) {
    const Stream stream{
        .documents = &documents_, .cos_TH = {}, .sin_TH = {}, .training = training, .draw = draw};
    return layer_->forward(at::arange(documents_.cu_seqlens.back(), at::kLong), stream);
  }

  Documents documents_{{0, 400, 500}, at::arange(500, at::kLong)};
  std::unique_ptr<Layer> layer_ = make_noisy_embedding(std::make_unique<Zeros>(), kAlpha);
};

TEST_F(NoisyEmbedding, IsUniformWithinTheBoundOfEachDocument) {
  const at::Tensor all = noise(1);
  for (int64_t s = 0; s < 2; ++s) {
    const int64_t begin = documents_.cu_seqlens[s];
    const int64_t length = documents_.cu_seqlens[s + 1] - begin;
    const double bound = kAlpha / std::sqrt(static_cast<double>(length * kWidth));
    const at::Tensor part = all.narrow(0, begin, length) / bound;
    EXPECT_LE(part.abs().max().item<double>(), 1);
    EXPECT_GT(part.abs().max().item<double>(), 0.99);
    EXPECT_NEAR(part.mean().item<double>(), 0, 0.03);
    EXPECT_NEAR(part.square().mean().item<double>(), 1.0 / 3, 0.02);
  }
}

TEST_F(NoisyEmbedding, IsTheSameForTheSameDrawAndAnotherForAnother) {
  const at::Tensor first = noise(1);
  EXPECT_GT((noise(2) - first).abs().max().item<double>(), 0);
  EXPECT_TRUE(noise(1).equal(first));
}

TEST_F(NoisyEmbedding, IsNotThereInAnEvaluation) {
  EXPECT_EQ(noise(1, /*training=*/false).abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace tessera
