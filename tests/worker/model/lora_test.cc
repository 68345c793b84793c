// Blocks with adapters against the same blocks with the adapters merged into their weights.
#include "worker/model/lora.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "worker/errors.h"
#include "worker/model/decoder.h"
#include "worker/model/dropout.h"
#include "worker/model/linear.h"

namespace tessera {
namespace {

ModelConfig tiny_config() {
  ModelConfig config;
  config.model_type = "qwen2";
  config.vocab_size = 29;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 1;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 6;
  config.qkv_bias = true;
  return config;
}

class Sink : public GradientSink {
 public:
  explicit Sink(const at::Tensor& like) : sum(at::zeros_like(like)) {}
  Place place() override { return {sum, /*begun=*/false}; }
  void done() override { ++num_done; }

  at::Tensor sum;
  int num_done = 0;
};

// A model of one block with random weights, the same for every instance; adapters where there are
// options.
struct AdaptedModel {
  explicit AdaptedModel(const std::optional<LoraOptions>& options) : model(tiny_config(), 8) {
    if (options) add_adapters(model, *options);
    for (Parameter* p : block().parameters()) {
      at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
      generator.set_current_seed(make_draw(p->name));
      p->value = at::empty(p->shape).uniform_(-0.5, 0.5, generator);
      if (p->fresh == Fresh::kRowNorms) p->value.abs_().add_(0.5);
      if (!p->trainable) continue;
      p->value.requires_grad_(true);
      sinks.emplace(p->name, std::make_unique<Sink>(p->value));
      p->gradient_sink = sinks.at(p->name).get();
    }
  }
  Layer& block() { return *model.layers()[1]; }

  DecoderModel model;
  std::map<std::string, std::unique_ptr<Sink>> sinks;
};

class LoraTest : public testing::TestWithParam<LoraOptions> {
 protected:
  LoraTest() {
    at::set_num_threads(1);
    documents_.cu_seqlens = {0, 9, 10, 37};
    const at::Tensor angles = at::rand({37, tiny_config().head_dim / 2}) * 6;
    stream_ = {&documents_, angles.cos(), angles.sin()};
    x_ = at::randn({37, tiny_config().hidden_size});
    upstream_ = at::randn(x_.sizes());
  }

  // The gradient of x.
  at::Tensor run(AdaptedModel& m, bool lean, at::Tensor& y) {
    const at::Tensor x = x_.clone().requires_grad_(true);
    const auto lean_y =
        lean ? m.block().lean_forward(x, stream_, RecomputePolicy::kAttention) : std::nullopt;
    EXPECT_EQ(lean_y.has_value(), lean);
    y = lean_y ? *lean_y : m.block().forward(x, stream_);
    torch::autograd::backward({y}, {upstream_});
    return x.grad();
  }

  Documents documents_;
  Stream stream_;
  at::Tensor x_, upstream_;
};

void expect_close(const at::Tensor& ours, const at::Tensor& plain, const std::string& what) {
  const double difference = (ours - plain).abs().max().item<double>();
  EXPECT_LT(difference, 2e-5 * (1 + plain.abs().max().item<double>())) << what;
}

// Puts each adapted layer's whole matrix in the place of `linear`'s weight.
void merge_into(Linear& linear, const Linear& adapted) {
  const LoraAdapter& lora = *adapted.adapter;
  at::Tensor whole = adapted.weight.value + lora.scale * at::mm(lora.b.value, lora.a.value);
  if (lora.has_magnitude()) {
    const at::Tensor norms = at::linalg_vector_norm(whole, 2, at::OptionalIntArrayRef(1));
    whole = whole * (lora.magnitude.value / norms).unsqueeze(1);
  }
  linear.weight.value = whole.detach().requires_grad_(true);
}

// What the gradient of the whole matrix says of the adapter's.
void expect_gradients(const Linear& adapted, const at::Tensor& grad_whole,
                      const std::function<at::Tensor(const Parameter&)>& gradient) {
  const LoraAdapter& lora = *adapted.adapter;
  at::Tensor grad = grad_whole;
  if (lora.has_magnitude()) {
    const at::Tensor whole = adapted.weight.value + lora.scale * at::mm(lora.b.value, lora.a.value);
    const at::Tensor norms = at::linalg_vector_norm(whole, 2, at::OptionalIntArrayRef(1));
    expect_close(gradient(lora.magnitude), (grad * whole).sum(1) / norms, lora.magnitude.name);
    grad = grad * (lora.magnitude.value / norms).unsqueeze(1);  // the norms count as constants
  }
  expect_close(gradient(lora.a), lora.scale * at::mm(lora.b.value.t(), grad), lora.a.name);
  expect_close(gradient(lora.b), lora.scale * at::mm(grad, lora.a.value.t()), lora.b.name);
}

TEST_P(LoraTest, EqualsTheMergedBlockForwardAndBackward) {
  AdaptedModel merged(std::nullopt);
  for (const bool lean : {false, true}) {
    if (lean && GetParam().dora) continue;
    AdaptedModel adapted(GetParam());
    const auto linears = adapted.block().linears(), wholes = merged.block().linears();
    for (size_t i = 0; i < linears.size(); ++i) {
      if (linears[i]->adapter) merge_into(*wholes[i], *linears[i]);
    }
    at::Tensor merged_y, y;
    const at::Tensor merged_grad_x = run(merged, /*lean=*/false, merged_y);
    const at::Tensor grad_x = run(adapted, lean, y);
    expect_close(y, merged_y, "y");
    expect_close(grad_x, merged_grad_x, "the gradient of x");
    int num_adapted = 0;
    for (size_t i = 0; i < linears.size(); ++i) {
      if (!linears[i]->adapter) continue;
      EXPECT_FALSE(linears[i]->weight.value.grad().defined()) << linears[i]->name();
      ++num_adapted;
      expect_gradients(*linears[i], wholes[i]->weight.value.grad(), [&](const Parameter& p) {
        return lean ? adapted.sinks.at(p.name)->sum : p.value.grad();
      });
      wholes[i]->weight.value.mutable_grad().reset();
    }
    EXPECT_GT(num_adapted, 0);
    for (const auto& [name, sink] : adapted.sinks) EXPECT_EQ(sink->num_done, lean ? 1 : 0) << name;
    for (const Parameter* p : adapted.block().parameters())
      EXPECT_TRUE(p->trainable || !p->value.grad().defined()) << p->name;
  }
}

std::vector<LoraOptions> variants() {
  LoraOptions plain{.rank = 3, .alpha = 6, .dropout = 0};
  LoraOptions all = plain, stabilized = plain, dora = plain, saved = plain;
  all.target_modules = {"all-linear"};
  stabilized.rank_stabilized = true;
  stabilized.target_modules = {"o_proj", "mlp.down_proj"};
  dora.dora = true;
  dora.target_modules = {"all-linear"};
  saved.modules_to_save = {"k_proj", "layernorm"};
  saved.target_modules = {"all-linear"};
  return {plain, all, stabilized, dora, saved};
}

INSTANTIATE_TEST_SUITE_P(Variants, LoraTest, testing::ValuesIn(variants()));

TEST(Lora, ScalesByRankOrItsRoot) {
  const auto scale = [](bool stabilized) {
    DecoderModel model(tiny_config(), 8);
    add_adapters(model, {.rank = 16, .alpha = 32, .rank_stabilized = stabilized});
    return model.layers()[1]->linears()[0]->adapter->scale;
  };
  EXPECT_EQ(scale(false), 2);
  EXPECT_EQ(scale(true), 8);
}

TEST(Lora, AdaptsWhatIsNamedAndFreezesTheRest) {
  DecoderModel model(tiny_config(), 8);
  add_adapters(model, {.rank = 2,
                       .target_modules = {"v_proj", "mlp.up_proj", "o_proj"},
                       .modules_to_save = {"lm_head", "o_proj", "model.norm"}});
  std::vector<std::string> trained;
  for (const auto& layer : model.layers()) {
    for (const Parameter* p : layer->parameters()) {
      if (p->trainable) trained.push_back(p->name);
    }
  }
  for (const Parameter* p : model.head_parameters()) {
    if (p->trainable) trained.push_back(p->name);
  }
  EXPECT_THAT(trained, testing::ElementsAre("model.layers.0.self_attn.v_proj.lora_A.weight",
                                            "model.layers.0.self_attn.v_proj.lora_B.weight",
                                            "model.layers.0.self_attn.o_proj.weight",
                                            "model.layers.0.mlp.up_proj.lora_A.weight",
                                            "model.layers.0.mlp.up_proj.lora_B.weight",
                                            "model.norm.weight", "lm_head.weight"));
  EXPECT_THAT(adapted_modules(model), testing::ElementsAre("up_proj", "v_proj"));
}

TEST(Lora, NamesThatFitNothingAreRefused) {
  const auto complaint = [](const LoraOptions& options) -> std::string {
    DecoderModel model(tiny_config(), 8);
    try {
      add_adapters(model, options);
    } catch (const UserError& error) {
      return error.field() + ": " + error.what();
    }
    return "";
  };
  EXPECT_THAT(
      complaint({.target_modules = {"q_proj", "_proj"}}),
      testing::StartsWith("peft.lora_target_modules: peft.lora_target_modules holds \"_pr"));
  EXPECT_THAT(complaint({.modules_to_save = {"embed"}}),
              testing::StartsWith("peft.lora_modules_to_save: "));
}

TEST(Lora, DropsTheSameInputsForwardAndBackwardAndOnlyInTraining) {
  const int64_t in = 12, out = 7;
  for (const bool dora : {false, true}) {
    Linear linear("layer", in, out, /*has_bias=*/true);
    linear.adapter = std::make_unique<LoraAdapter>();
    LoraAdapter& lora = *linear.adapter;
    lora.scale = 0.7;
    lora.dropout = 0.4;
    lora.draw = 11;
    lora.a.value = at::randn({3, in}).requires_grad_(true);
    lora.b.value = at::randn({out, 3}).requires_grad_(true);
    if (dora) {
      lora.magnitude.name = "m";
      lora.magnitude.value = (at::rand({out}) + 0.5).requires_grad_(true);
    }
    linear.weight.value = at::randn({out, in});
    linear.bias.value = at::randn({out});
    const at::Tensor x = at::randn({5, in}), upstream = at::randn({5, out});
    Stream stream{};
    stream.training = true;
    stream.draw = 3;
    const at::Tensor mask =
        draw_mask(x.sizes(), 0.4, make_draw({stream.draw, lora.draw}), x.options());
    // The formula, through autograd.
    const auto formula = [&](const at::Tensor& x_in) {
      const at::Tensor seen = x_in * mask, base = at::mm(x_in, linear.weight.value.t());
      const at::Tensor low = at::mm(at::mm(seen, lora.a.value.t()), lora.b.value.t()) * lora.scale;
      if (!dora) return base + linear.bias.value + low;
      const at::Tensor factor =
          lora.magnitude.value /
          at::linalg_vector_norm(
              (linear.weight.value + lora.scale * at::mm(lora.b.value, lora.a.value)).detach(), 2,
              at::OptionalIntArrayRef(1));
      return base + linear.bias.value + (factor - 1) * at::mm(seen, linear.weight.value.t()) +
             factor * low;
    };
    std::vector<at::Tensor> leaves{lora.a.value, lora.b.value};
    if (dora) leaves.push_back(lora.magnitude.value);
    const auto gradients = [&](const auto& f) {
      const at::Tensor x_in = x.clone().requires_grad_(true);
      std::vector<at::Tensor> all{f(x_in).detach()};
      torch::autograd::backward({f(x_in)}, {upstream});
      all.push_back(x_in.grad());
      for (const at::Tensor& leaf : leaves) {
        all.push_back(leaf.grad().clone());
        leaf.mutable_grad().reset();
      }
      return all;
    };
    const auto expected = gradients(formula);
    const auto found = gradients([&](const at::Tensor& x_in) { return linear(x_in, stream); });
    for (size_t i = 0; i < expected.size(); ++i)
      expect_close(found[i], expected[i], std::to_string(i));
    stream.training = false;
    const at::Tensor plain = linear(x, stream);
    lora.dropout = 0;
    stream.training = true;
    EXPECT_TRUE(plain.equal(linear(x, stream)));
    EXPECT_FALSE(plain.equal(found[0]));
  }
}

TEST(Lora, BeginsAsPeftDoesWhoeverHoldsWhichPart) {
  DecoderModel model(tiny_config(), 8);
  add_adapters(model, {.rank = 8, .target_modules = {"q_proj", "k_proj"}});
  const auto linears = model.layers()[1]->linears();
  const LoraAdapter &q = *linears[0]->adapter, &k = *linears[1]->adapter;
  const int64_t numel = 8 * 24;
  const auto drawn = [&](const Parameter& p, uint64_t seed, int64_t begin, int64_t count) {
    at::Tensor out = at::randn({count});
    fill_fresh(p, seed, begin, out);
    return out;
  };
  const at::Tensor whole = drawn(q.a, 42, 0, numel);
  EXPECT_TRUE(whole.equal(at::cat({drawn(q.a, 42, 0, 50), drawn(q.a, 42, 50, numel - 50)})));
  EXPECT_FALSE(whole.equal(drawn(q.a, 43, 0, numel)));
  EXPECT_FALSE(whole.equal(drawn(k.a, 42, 0, numel)));
  const double bound = 1 / std::sqrt(24.0);
  EXPECT_LE(whole.abs().max().item<double>(), bound);
  EXPECT_GT(whole.abs().max().item<double>(), 0.9 * bound);
  EXPECT_NEAR(whole.std().item<double>(), bound / std::sqrt(3.0), 0.1 * bound);
  EXPECT_EQ(drawn(q.b, 42, 0, 24 * 8).abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace tessera
