#include "worker/model/tiled.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <deque>

#include "worker/memory/attribution.h"
#include "worker/model/dropout.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// In place of a parameter's leaf while tiles run backward: takes each tile's gradient, which would
// else arrive at the leaf as that of the whole backward.
class TileLeaf {
 public:
  explicit TileLeaf(Parameter& parameter)
      : parameter_(parameter),
        leaf_(parameter.value),
        place_(parameter.gradient_sink->place()),
        sum_(place_.sum),
        begun_(place_.begun) {
    if (sum_.scalar_type() != at::kFloat) {
      const OwnerScope scope(Owner::kGradients);
      sum_ = at::zeros(sum_.sizes(), sum_.options().dtype(at::kFloat));
      begun_ = true;
    }
    parameter_.value = leaf_.detach().requires_grad_(true);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter_.value, std::make_unique<Hook>(*this));
  }
  ~TileLeaf() { parameter_.value = leaf_; }
  TileLeaf(const TileLeaf&) = delete;
  TileLeaf& operator=(const TileLeaf&) = delete;

  // All tiles are done.
  void finish() {
    if (!begun_) sum_.zero_();
    if (!sum_.is_alias_of(place_.sum)) {
      if (place_.begun) {
        place_.sum.add_(sum_);
      } else {
        place_.sum.copy_(sum_);
      }
    }
    parameter_.gradient_sink->done();
  }

 private:
  struct Hook : torch::autograd::PostAccumulateGradHook {
    explicit Hook(TileLeaf& leaf) : leaf(leaf) {}
    void operator()(const torch::autograd::Variable&) override { leaf.take(); }
    TileLeaf& leaf;
  };

  void take() {
    const c10::AutoGradMode no_grad(false);
    at::Tensor& gradient = parameter_.value.mutable_grad();
    if (begun_) {
      sum_.add_(gradient);
    } else {
      sum_.copy_(gradient);
    }
    begun_ = true;
    gradient.reset();
  }

  Parameter& parameter_;
  at::Tensor leaf_;
  GradientSink::Place place_;
  at::Tensor sum_;  // float32
  bool begun_;
};

// Tokens [begin, begin + count), and the stream as they see it.
struct Tile {
  int64_t begin, count;
  int64_t name;            // the place in the whole stream where the tile it is of begins
  DrawnTokens drawn = {};  // its tokens among that one's

  at::Tensor of(const at::Tensor& x_TD) const { return x_TD.narrow(0, begin, count); }
  Stream of(const Stream& stream) const {
    Stream own = stream;
    own.first_token += begin;
    own.draw = make_draw({stream.draw, static_cast<uint64_t>(name)});  // no mask twice
    own.drawn = drawn;
    return own;
  }
};

// Of a part of a stream: what it has of the whole stream's tiles.
std::vector<Tile> tiles_of(int64_t num_tokens, const Stream& stream) {
  const int64_t size = stream.mlp_tile_tokens;
  std::vector<Tile> tiles;
  if (stream.drawn.are_all()) {
    for (int64_t begin = 0; begin < num_tokens; begin += size)
      tiles.push_back({begin, std::min(size, num_tokens - begin), begin});
    return tiles;
  }
  int64_t row = 0;
  for (const DrawnTokens::Stretch& stretch : stream.drawn.stretches) {
    for (int64_t done = 0, count = 0; done < stretch.count; done += count, row += count) {
      const int64_t place = stretch.begin + done, within = place % size;
      count = std::min(size - within, stretch.count - done);
      const int64_t there = std::clamp<int64_t>(stream.drawn.num_tokens - place + within, 0, size);
      tiles.push_back({row, count, place - within, {there, {{within, count}}}});
    }
  }
  return tiles;
}

// Tokens of the whole stream.
int64_t num_all_tokens(int64_t num_tokens, const Stream& stream) {
  return stream.drawn.are_all() ? num_tokens : stream.drawn.num_tokens;
}

struct RunInTiles : Function<RunInTiles> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_TD, int64_t layer_pointer,
                            int64_t stream_pointer) {
    const auto& layer = *reinterpret_cast<const TokenwiseLayer*>(layer_pointer);
    const auto& stream = *reinterpret_cast<const Stream*>(stream_pointer);
    ctx->save_for_backward({x_TD});
    ctx->saved_data["layer"] = layer_pointer;
    ctx->saved_data["stream"] = stream_pointer;
    at::Tensor y_TD = at::empty_like(x_TD);
    if (stream.is_rerun) return y_TD;  // backward reads no value of it
    for (const Tile& tile : tiles_of(x_TD.size(0), stream)) {
      tile.of(y_TD).copy_(layer.run(tile.of(x_TD), tile.of(stream)));
    }
    return y_TD;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& layer = *reinterpret_cast<const TokenwiseLayer*>(ctx->saved_data["layer"].toInt());
    const auto& stream = *reinterpret_cast<const Stream*>(ctx->saved_data["stream"].toInt());
    const at::Tensor x_TD = ctx->get_saved_variables()[0];
    at::Tensor grad_TD = at::empty_like(x_TD);
    std::deque<TileLeaf> leaves;
    for (Parameter* parameter : layer.parameters) {
      if (parameter->trainable) leaves.emplace_back(*parameter);
    }
    for (const Tile& tile : tiles_of(x_TD.size(0), stream)) {
      at::Tensor x_CD = tile.of(x_TD).detach().requires_grad_(true);
      {
        const c10::AutoGradMode with_grad(true);
        const at::Tensor y_CD = layer.run(x_CD, tile.of(stream));
        torch::autograd::backward({y_CD}, {tile.of(grads[0])});
      }
      tile.of(grad_TD).copy_(x_CD.grad());
    }
    for (TileLeaf& leaf : leaves) leaf.finish();
    return {grad_TD, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor run_in_tiles(const at::Tensor& x_TD, const TokenwiseLayer& layer, const Stream& stream) {
  const bool has_sinks = std::ranges::all_of(layer.parameters, [](const Parameter* parameter) {
    return !parameter->trainable || parameter->gradient_sink != nullptr;
  });
  if (!has_sinks || num_all_tokens(x_TD.size(0), stream) <= stream.mlp_tile_tokens)
    return layer.run(x_TD, stream);
  at::Tensor input_TD = x_TD;
  // Parameters are no inputs: the stream stands in for them where nothing below it is trained.
  if (c10::GradMode::is_enabled() && !x_TD.requires_grad() &&
      std::ranges::any_of(layer.parameters, &Parameter::trainable)) {
    input_TD = x_TD.detach().requires_grad_(true);
  }
  return RunInTiles::apply(input_TD, reinterpret_cast<int64_t>(&layer),
                           reinterpret_cast<int64_t>(&stream));
}

}  // namespace tessera
