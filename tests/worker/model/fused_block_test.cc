// The block as one function against the same block through autograd.
#include "worker/model/fused_block.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "worker/model/block.h"
#include "worker/parallel/context_group.h"

namespace tessera {
namespace {

struct Case {
  const char* name;
  std::vector<int64_t> lengths;
  ModelConfig config;
  bool begun = false;         // whether the sinks hold something already
  bool side_by_side = false;  // whether weights adjoin in memory, as a sharder lays them out
  RecomputePolicy policy = RecomputePolicy::kAttention;
  // The stream is shared so: by one rank, which has both of its chunks.
  std::optional<ContextStrategy> shared = {};
};

constexpr RecomputePolicy kAttention = RecomputePolicy::kAttention;

ModelConfig config_of(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  ModelConfig config;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 1;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = head_dim;
  return config;
}

ModelConfig with_biases(ModelConfig config) {
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  return config;
}

ModelConfig with_qk_norm(ModelConfig config) {
  config.qk_norm = true;
  return config;
}

ModelConfig with_window(ModelConfig config, int64_t window) {
  config.windows = {window};
  return config;
}

std::vector<Case> cases() {
  const ModelConfig plain = config_of(4, 4, 8), grouped = config_of(4, 2, 6);
  const ModelConfig all = with_window(with_qk_norm(with_biases(grouped)), 20);
  return {{"Plain", {9, 1, 30}, plain},
          {"GroupedHeads", {40, 3}, grouped},
          {"Biases", {17, 5}, with_biases(grouped)},
          {"NormedHeads", {33}, with_qk_norm(grouped)},
          {"Window", {50, 4}, with_window(plain, 7)},
          {"AddsToWhatIsThere", {12, 20}, with_biases(plain), true},
          {"SideBySide", {12, 20}, plain, false, true},
          {"SideBySideAddsToWhatIsThere", {12, 20}, with_qk_norm(plain), true, true},
          // More than one part of both halves.
          {"ManyTokens", {700, 600, 1, 1100, 300}, all, false, true},
          {"KeepsItsInputOnly", {40, 3}, all, true, true, RecomputePolicy::kFull},
          {"SharedAllGather", {40, 4}, all, false, true, kAttention, ContextStrategy::kAllGather},
          {"SharedRing", {40, 4}, all, false, true, kAttention, ContextStrategy::kRing},
          {"SharedUlysses", {40, 4}, all, false, true, kAttention, ContextStrategy::kUlysses},
          {"SharedKeepsItsInputOnly",
           {1040, 16},
           plain,
           true,
           false,
           RecomputePolicy::kFull,
           ContextStrategy::kRing}};
}

class Sink : public GradientSink {
 public:
  Sink(at::Tensor sum, bool begun) : sum(std::move(sum)), begun(begun) {}
  Place place() override { return {sum, begun}; }
  void done() override { ++num_done; }

  at::Tensor sum;
  bool begun;
  int num_done = 0;
};

// A block with random weights, and sinks for their gradients.
class FusedBlockTest : public testing::TestWithParam<Case> {
 protected:
  FusedBlockTest()
      : case_(GetParam()), block_(make_decoder_block(case_.config, 0)), x_(make_stream()) {
    int64_t numel = 0;
    for (const Parameter* p : block_->parameters()) numel += numel_of(*p);
    const at::Tensor values = at::randn({numel}) * 0.3;
    const at::Tensor sums = at::full({numel}, case_.begun ? 0.5 : NAN);
    int64_t offset = 0;
    for (Parameter* p : block_->parameters()) {
      const auto part = [&](const at::Tensor& all) {
        const at::Tensor view = all.narrow(0, offset, numel_of(*p)).view(p->shape).detach();
        return case_.side_by_side ? view : view.clone();
      };
      p->value = part(values).requires_grad_(true);
      sinks_.push_back(std::make_unique<Sink>(part(sums), case_.begun));
      p->gradient_sink = sinks_.back().get();
      offset += numel_of(*p);
    }
  }

  static int64_t numel_of(const Parameter& p) {
    return p.shape.size() == 1 ? p.shape[0] : p.shape[0] * p.shape[1];
  }

  at::Tensor make_stream() {
    documents_.cu_seqlens = {0};
    for (const int64_t length : case_.lengths)
      documents_.cu_seqlens.push_back(documents_.cu_seqlens.back() + length);
    const int64_t tokens = documents_.cu_seqlens.back();
    if (case_.shared) {
      documents_.part =
          StreamPart{.chunk_tokens = tokens / 2, .strategy = *case_.shared, .exchange = &exchange_};
    }
    const at::Tensor angles = at::rand({tokens, case_.config.head_dim / 2}) * 6;
    stream_ = {&documents_, angles.cos(), angles.sin()};
    return at::randn({tokens, case_.config.hidden_size});
  }

  Case case_;
  std::unique_ptr<Layer> block_;
  std::unique_ptr<Collectives> group_ = make_single_collectives();
  ContextGroup exchange_{*group_};
  Documents documents_;
  Stream stream_;
  at::Tensor x_;
  std::vector<std::unique_ptr<Sink>> sinks_;
};

void expect_close(const at::Tensor& ours, const at::Tensor& plain, const std::string& what) {
  const double difference = (ours - plain).abs().max().item<double>();
  EXPECT_LT(difference, 2e-5 * (1 + plain.abs().max().item<double>())) << what;
}

TEST_P(FusedBlockTest, EqualsThePlainBlockForwardAndBackward) {
  const at::Tensor plain_x = x_.clone().requires_grad_(true);
  const at::Tensor plain_y = block_->forward(plain_x, stream_);
  const at::Tensor upstream = at::randn(plain_y.sizes());
  torch::autograd::backward({plain_y}, {upstream});

  const at::Tensor x = x_.clone().requires_grad_(true);
  const std::optional<at::Tensor> y = block_->lean_forward(x, stream_, GetParam().policy);
  ASSERT_TRUE(y.has_value());
  const at::Tensor upstream_before = upstream.clone();
  torch::autograd::backward({*y}, {upstream});

  expect_close(*y, plain_y, "y");
  expect_close(x.grad(), plain_x.grad(), "the gradient of x");
  EXPECT_TRUE(upstream.equal(upstream_before));
  const std::vector<Parameter*> parameters = block_->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor sum = sinks_[i]->sum - (case_.begun ? 0.5 : 0.0);
    expect_close(sum, parameters[i]->value.grad(), parameters[i]->name);
    EXPECT_EQ(sinks_[i]->num_done, 1) << parameters[i]->name;
  }
}

TEST_P(FusedBlockTest, RunsWithoutAutogradToTheSameValues) {
  const std::optional<at::Tensor> trained =
      block_->lean_forward(x_.clone().requires_grad_(true), stream_, kAttention);
  const c10::AutoGradMode no_grad(false);
  EXPECT_TRUE(trained->equal(*block_->lean_forward(x_, stream_, kAttention)));
}

INSTANTIATE_TEST_SUITE_P(Blocks, FusedBlockTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(FusedBlock, LeavesWhatItCannotDoToAutograd) {
  Documents documents{.cu_seqlens = {0, 4}};
  const at::Tensor angles = at::rand({4, 4});
  const Stream stream{&documents, angles.cos(), angles.sin(), /*training=*/true};
  const at::Tensor x = at::randn({4, 24});
  ModelConfig config = config_of(2, 2, 8);
  const auto runs = [&](at::ScalarType dtype, bool has_sinks) {
    const std::unique_ptr<Layer> block = make_decoder_block(config, 0);
    std::vector<std::unique_ptr<Sink>> sinks;
    for (Parameter* p : block->parameters()) {
      p->value = at::randn(p->shape).to(dtype);
      if (!has_sinks) continue;
      sinks.push_back(std::make_unique<Sink>(at::zeros_like(p->value), false));
      p->gradient_sink = sinks.back().get();
    }
    return block->lean_forward(x.to(dtype), stream, kAttention).has_value();
  };
  EXPECT_TRUE(runs(at::kFloat, true));
  EXPECT_FALSE(runs(at::kFloat, false));
  EXPECT_FALSE(runs(at::kBFloat16, true));
  config.hidden_dropout = 0.1;
  EXPECT_FALSE(runs(at::kFloat, true));
  config.hidden_dropout = 0;
  config.attention_dropout = 0.1;
  EXPECT_FALSE(runs(at::kFloat, true));
}

}  // namespace
}  // namespace tessera
