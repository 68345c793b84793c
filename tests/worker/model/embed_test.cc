// The gradient of the embedding, where it is summed by ourselves.
#include "worker/model/embed.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace tessera {
namespace {

class Sink final : public GradientSink {
 public:
  Sink(const at::Tensor& sum, bool begun) : place_{sum, begun} {}
  Place place() override { return place_; }
  at::ScalarType dtype() const override { return place_.sum.scalar_type(); }
  void done() override { ++num_done; }

  int num_done = 0;

 private:
  Place place_;
};

// Of token 3, that comes 3000 times, and token 0, that comes once; each time with ones.
at::Tensor gradient(at::ScalarType dtype, bool begun) {
  const at::Tensor sum = at::full({5, 4}, begun ? 8 : -100, at::TensorOptions(dtype));
  Sink sink(sum, begun);
  Parameter weight{"embed", {5, 4}, at::zeros({5, 4}, at::TensorOptions(dtype))};
  weight.gradient_sink = &sink;
  at::Tensor tokens_T = at::full({3001}, 3, at::kLong);
  tokens_T[0] = 0;
  const at::Tensor y_TD = embed(weight, tokens_T, /*padding_idx=*/-1);
  torch::autograd::backward({y_TD}, {at::ones({3001, 4}, at::TensorOptions(dtype))});
  EXPECT_EQ(sink.num_done, 1);
  return sum;
}

TEST(Embed, SumsTheRowsOfAFrequentTokenInFloat32) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool begun : {false, true}) {
      const at::Tensor sum = gradient(dtype, begun).to(at::kFloat);
      const double before = begun ? 8 : 0;
      EXPECT_NEAR(sum[3][2].item<double>(), before + 3000, dtype == at::kFloat ? 0 : 8);
      EXPECT_EQ(sum[0][2].item<double>(), before + 1);
      EXPECT_EQ(sum[1][0].item<double>(), before);
    }
  }
}

}  // namespace
}  // namespace tessera
