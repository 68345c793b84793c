// A mixture of experts: each token is worked on by the few of many MLPs that its router prefers.
// Source: transformers/models/qwen3_moe/modeling_qwen3_moe.py.
//
// Shapes: E experts, C experts a token, S = T * C (token, expert) pairs in order of expert.
#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <optional>

#include "worker/model/feed_forward.h"
#include "worker/model/functions.h"
#include "worker/model/router_balance.h"

namespace tessera {
namespace {

// One expert's matrices. Checkpoints have them one by one, or, as transformers holds them in
// memory, in one tensor a layer: gate and up of each expert on top of each other, and all downs.
// `layer` is the name of the first, `held` of the second.
struct Expert {
  Linear gate, up, down;

  Expert(const ExpertsConfig& c, const std::string& layer, const std::string& held, int64_t index,
         int64_t width)
      : Expert(c, layer + ".experts." + std::to_string(index) + ".", width) {
    const int64_t inner = c.intermediate_size, size = inner * width;
    const std::vector<int64_t> gate_up_shape{c.num_experts, 2 * inner, width};
    const std::vector<int64_t> down_shape{c.num_experts, width, inner};
    const std::string gate_up = held + ".experts.gate_up_proj";
    gate.weight.also_stored_as = {{gate_up, gate_up_shape, 2 * index * size}};
    up.weight.also_stored_as = {{gate_up, gate_up_shape, (2 * index + 1) * size}};
    down.weight.also_stored_as = {{held + ".experts.down_proj", down_shape, index * size}};
  }

  at::Tensor operator()(const at::Tensor& x, const Stream& stream) const {
    return down(swiglu(gate(x, stream), up(x, stream)), stream);
  }

 private:
  Expert(const ExpertsConfig& c, const std::string& prefix, int64_t width)
      : gate(prefix + c.gate, width, c.intermediate_size, /*has_bias=*/false),
        up(prefix + c.up, width, c.intermediate_size, /*has_bias=*/false),
        down(prefix + c.down, c.intermediate_size, width, /*has_bias=*/false) {}
};

class Experts : public FeedForward {
 public:
  Experts(const ModelConfig& config, const std::string& name, const std::string& held)
      : config_(config.experts),
        router_(name + ".gate", config.hidden_size, config_.num_experts, /*has_bias=*/false) {
    router_.is_router = true;
    router_.weight.also_stored_as = {{held + ".gate.weight", router_.weight.shape, 0}};
    for (int64_t i = 0; i < config_.num_experts; ++i)
      experts_.emplace_back(config_, name, held, i, config.hidden_size);
  }

  at::Tensor forward(const at::Tensor& x_TD, const Stream& stream) override {
    const at::Tensor logits_TE = stream.balance->watch(router_(x_TD, stream), stream.first_token);
    auto [weights_TC, chosen_TC] = choose(logits_TE);
    const at::Tensor order_S =
        std::get<1>(at::sort(chosen_TC.flatten(), std::optional<bool>(true), /*dim=*/0));
    const at::Tensor tokens_S = order_S.div(config_.num_experts_per_token, "floor");
    const at::Tensor y_SD = run(x_TD.index_select(0, tokens_S), counts(chosen_TC), stream);
    const at::Tensor weights_S1 = weights_TC.flatten().index_select(0, order_S).unsqueeze(1);
    return at::zeros_like(x_TD).index_add_(0, tokens_S, (y_SD * weights_S1).to(x_TD.scalar_type()));
  }

  std::vector<Linear*> linears() override {
    std::vector<Linear*> list{&router_};
    for (Expert& expert : experts_) {
      list.insert(list.end(), {&expert.gate, &expert.up, &expert.down});
    }
    return list;
  }

 private:
  // The weights [T, C] and indices [T, C] of each token's experts. Softmax is in float32.
  std::tuple<at::Tensor, at::Tensor> choose(const at::Tensor& logits_TE) const {
    auto [weights_TC, chosen_TC] =
        logits_TE.softmax(-1, at::kFloat).topk(config_.num_experts_per_token, -1);
    if (config_.normalize_weights) weights_TC = weights_TC / weights_TC.sum(-1, /*keepdim=*/true);
    if (!config_.weights_in_float) weights_TC = weights_TC.to(logits_TE.scalar_type());
    return {weights_TC, chosen_TC};
  }

  std::vector<int64_t> counts(const at::Tensor& chosen_TC) const {
    at::Tensor counts_E = at::bincount(chosen_TC.flatten(), {}, config_.num_experts);
    if (counts_E.is_meta()) return even_counts(chosen_TC.numel());
    counts_E = counts_E.cpu();
    const int64_t* begin = counts_E.const_data_ptr<int64_t>();
    return {begin, begin + config_.num_experts};
  }

  // Where no token has chosen: as balanced as they come.
  std::vector<int64_t> even_counts(int64_t total) const {
    std::vector<int64_t> counts(config_.num_experts, total / config_.num_experts);
    for (int64_t i = 0; i < total % config_.num_experts; ++i) ++counts[i];
    return counts;
  }

  // Each expert on its own rows. One without rows runs on none: its weights get a gradient of
  // zeros, so that on every rank all gradients of the block arrive, and units are reduced in one
  // order.
  at::Tensor run(const at::Tensor& x_SD, const std::vector<int64_t>& rows_of,
                 const Stream& stream) const {
    const std::vector<at::Tensor> parts = x_SD.split_with_sizes(rows_of, 0);
    std::vector<at::Tensor> outs;
    outs.reserve(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) outs.push_back(experts_[i](parts[i], stream));
    return at::cat(outs, 0);
  }

  ExpertsConfig config_;
  Linear router_;
  std::vector<Expert> experts_;
};

}  // namespace

std::unique_ptr<FeedForward> make_experts(const ModelConfig& config, const std::string& block) {
  return std::make_unique<Experts>(config, block + "." + config.experts.name, block + ".mlp");
}

}  // namespace tessera
