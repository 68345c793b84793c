// A layer of experts and its load-balancing loss, against the formulas written out.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "worker/model/feed_forward.h"
#include "worker/model/router_balance.h"

namespace tessera {
namespace {

constexpr int64_t kTokens = 13;
constexpr double kWeight = 0.7;

ModelConfig config_of(int64_t num_experts, int64_t per_token, bool normalize) {
  ModelConfig config;
  config.hidden_size = 8;
  config.num_layers = 1;
  config.experts = {.num_experts = num_experts,
                    .num_experts_per_token = per_token,
                    .intermediate_size = 6,
                    .normalize_weights = normalize,
                    .name = "mlp",
                    .gate = "gate_proj",
                    .up = "up_proj",
                    .down = "down_proj",
                    .in_layer = {true}};
  return config;
}

class Layer {
 public:
  explicit Layer(const ModelConfig& config)
      : config_(config), experts_(make_experts(config, "block")) {
    experts_->list(parameters_);
    for (Parameter* parameter : parameters_)
      parameter->value = at::randn(parameter->shape).requires_grad_(true);
  }

  at::Tensor run(const at::Tensor& x_TD, RouterBalance& balance) {
    Stream stream{};
    stream.balance = &balance;
    return experts_->forward(x_TD, stream);
  }

  // Every expert on every token, weighted with what the router gives it, or with 0.
  at::Tensor plain(const at::Tensor& x_TD) const {
    const auto weight = [&](size_t i) { return parameters_[i]->value; };
    const ExpertsConfig& c = config_.experts;
    const at::Tensor probabilities = at::linear(x_TD, weight(0)).softmax(-1);
    const auto [values, chosen] = probabilities.topk(c.num_experts_per_token, -1);
    const at::Tensor mask = at::one_hot(chosen, c.num_experts).sum(1);
    at::Tensor shares = probabilities * mask;
    if (c.normalize_weights) shares = shares / shares.sum(-1, true);
    at::Tensor out = at::zeros_like(x_TD);
    for (int64_t e = 0; e < c.num_experts; ++e) {
      const at::Tensor inner =
          at::silu(at::linear(x_TD, weight(1 + 3 * e))) * at::linear(x_TD, weight(2 + 3 * e));
      out = out + at::linear(inner, weight(3 + 3 * e)) * shares.select(1, e).unsqueeze(1);
    }
    return out;
  }

  // transformers' formula, over the first `num_tokens` tokens.
  at::Tensor plain_balance(const at::Tensor& x_TD, int64_t num_tokens) const {
    const ExpertsConfig& c = config_.experts;
    const at::Tensor probabilities =
        at::linear(x_TD, parameters_[0]->value).narrow(0, 0, num_tokens).softmax(-1);
    const at::Tensor chosen = std::get<1>(probabilities.topk(c.num_experts_per_token, -1));
    const at::Tensor counts = at::one_hot(chosen, c.num_experts).sum(1).to(at::kFloat).mean(0);
    return (counts * probabilities.mean(0)).sum() * c.num_experts;
  }

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  void clear() {
    for (Parameter* parameter : parameters_) parameter->value.mutable_grad().reset();
  }
  std::vector<at::Tensor> gradients(const at::Tensor& x) const {
    std::vector<at::Tensor> list{x.grad().clone()};
    for (const Parameter* parameter : parameters_) list.push_back(parameter->value.grad().clone());
    return list;
  }

 private:
  ModelConfig config_;
  std::unique_ptr<FeedForward> experts_;
  std::vector<Parameter*> parameters_;
};

struct Case {
  int64_t num_experts, per_token;
  bool normalize;
  int64_t num_counted = kTokens;  // tokens that are not padding
};

class Experts : public testing::TestWithParam<Case> {};

TEST_P(Experts, EqualTheFormulaForwardAndBackward) {
  const Case& c = GetParam();
  Layer layer(config_of(c.num_experts, c.per_token, c.normalize));
  const at::Tensor x = at::randn({kTokens, 8}).requires_grad_(true);
  const at::Tensor upstream = at::randn({kTokens, 8});

  const at::Tensor expected = layer.plain(x);
  const at::Tensor expected_balance = layer.plain_balance(x, c.num_counted);
  torch::autograd::backward({(expected * upstream).sum() + kWeight * expected_balance}, {});
  // An expert that no token chose has none in the plain formula's graph either: zeros.
  const std::vector<at::Tensor> expected_gradients = layer.gradients(x);
  layer.clear();
  x.mutable_grad().reset();

  RouterBalance balance(c.num_experts, c.per_token);
  balance.begin(c.num_counted, kWeight);
  const at::Tensor out = layer.run(x, balance);
  const double aux_loss = balance.finish();
  torch::autograd::backward({(out * upstream).sum()}, {});
  EXPECT_TRUE(at::allclose(out, expected, 1e-4, 1e-5));
  EXPECT_NEAR(aux_loss, expected_balance.item<double>(), 1e-5);
  const std::vector<at::Tensor> found = layer.gradients(x);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i], expected_gradients[i], 1e-4, 1e-5))
        << i << (found[i] - expected_gradients[i]).abs().max();
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Experts,
                         testing::Values(Case{4, 2, true}, Case{4, 2, false}, Case{5, 1, false},
                                         Case{3, 3, true}, Case{40, 2, true}, Case{4, 2, true, 9}));

TEST(RouterBalance, OfNoTokensIsZero) {
  RouterBalance balance(3, 1);
  const at::Tensor logits = at::randn({1, 3}).requires_grad_(true);
  balance.begin(/*num_tokens=*/0, kWeight);
  const at::Tensor passed = balance.watch(logits);
  EXPECT_EQ(balance.finish(), 0);
  torch::autograd::backward({passed.sum()}, {});
  EXPECT_TRUE(at::equal(logits.grad(), at::ones_like(logits)));
}

TEST(RouterBalance, DoesNotCountALayerThatRunsAgain) {
  RouterBalance balance(3, 1);
  const at::Tensor logits = at::randn({5, 3});
  balance.begin(5, kWeight);
  balance.watch(logits);
  const double once = balance.finish();
  balance.begin(5, kWeight);
  balance.watch(logits);
  const double again = balance.finish();
  balance.watch(logits);
  EXPECT_EQ(once, again);
}

TEST(RouterBalance, IsThatOfAllRanksTogether) {
  const at::Tensor logits = at::randn({8, 3});
  RouterBalance whole(3, 2);
  whole.begin(8, kWeight);
  whole.watch(logits);
  const double expected = whole.finish();

  // Two ranks, the other's sums are known here.
  at::Tensor other;
  RouterBalance second(3, 2);
  second.set_sum([&](at::Tensor& sums) { other = sums.clone(); });
  second.begin(3, kWeight);
  second.watch(logits.narrow(0, 5, 3));
  second.finish();
  RouterBalance first(3, 2);
  first.set_sum([&](at::Tensor& sums) { sums.add_(other); });
  first.begin(5, kWeight);
  first.watch(logits.narrow(0, 0, 5));
  EXPECT_NEAR(first.finish(), expected, 1e-7);
}

}  // namespace
}  // namespace tessera
