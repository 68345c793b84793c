#include "worker/model/dropout.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/kernels/meta_operators.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The finaliser of SplitMix64.
uint64_t mixed(uint64_t z) {
  z += 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

struct Dropout : Function<Dropout> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double share, int64_t draw,
                            const std::vector<int64_t>& tokens) {
    ctx->saved_data["share"] = share;
    ctx->saved_data["draw"] = draw;
    ctx->saved_data["tokens"] = tokens;
    return draw_mask(x.sizes(), share, static_cast<uint64_t>(draw), x.options(),
                     DrawnTokens::from_flat(tokens))
        .mul_(x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const double share = ctx->saved_data["share"].toDouble();
    const auto draw = static_cast<uint64_t>(ctx->saved_data["draw"].toInt());
    const at::Tensor mask =
        draw_mask(grads[0].sizes(), share, draw, grads[0].options(),
                  DrawnTokens::from_flat(ctx->saved_data["tokens"].toIntVector()));
    return {mask * grads[0], at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

uint64_t make_draw(std::initializer_list<uint64_t> parts) {
  uint64_t draw = 0;
  for (const uint64_t part : parts) draw = mixed(draw ^ mixed(part));
  return draw;
}

uint64_t make_draw(std::string_view name) {
  uint64_t draw = 0;
  for (const char c : name) draw = mixed(draw ^ mixed(static_cast<unsigned char>(c)));
  return draw;
}

at::Tensor draw_mask(at::IntArrayRef sizes, double share, uint64_t draw,
                     const at::TensorOptions& options) {
  if (options.device().is_meta()) return draw_nothing(sizes, options);
  // A generator of our own: nobody else's draws are touched.
  at::Generator generator = at::globalContext().defaultGenerator(options.device()).clone();
  generator.set_current_seed(draw);
  return at::empty(sizes, options).bernoulli_(1 - share, generator).div_(1 - share);
}

std::vector<int64_t> DrawnTokens::flat() const {
  std::vector<int64_t> numbers;
  if (are_all()) return numbers;
  numbers.push_back(num_tokens);
  for (const Stretch& stretch : stretches) {
    numbers.push_back(stretch.begin);
    numbers.push_back(stretch.count);
  }
  return numbers;
}

DrawnTokens DrawnTokens::from_flat(const std::vector<int64_t>& numbers) {
  DrawnTokens tokens;
  if (numbers.empty()) return tokens;
  tokens.num_tokens = numbers[0];
  for (size_t i = 1; i + 1 < numbers.size(); i += 2)
    tokens.stretches.push_back({numbers[i], numbers[i + 1]});
  return tokens;
}

at::Tensor drawn_rows(const at::Tensor& all, const DrawnTokens& tokens) {
  std::vector<at::Tensor> rows;
  for (const DrawnTokens::Stretch& stretch : tokens.stretches) {
    const int64_t begin = std::min(stretch.begin, tokens.num_tokens);
    const int64_t there = std::min(stretch.count, tokens.num_tokens - begin);
    rows.push_back(all.narrow(0, begin, there));
    if (there == stretch.count) continue;
    std::vector<int64_t> padding = all.sizes().vec();
    padding[0] = stretch.count - there;
    rows.push_back(at::zeros(padding, all.options()));
  }
  return at::cat(rows);
}

at::Tensor draw_mask(at::IntArrayRef sizes, double share, uint64_t draw,
                     const at::TensorOptions& options, const DrawnTokens& tokens) {
  if (tokens.are_all()) return draw_mask(sizes, share, draw, options);
  std::vector<int64_t> all = sizes.vec();
  all[0] = tokens.num_tokens;
  return drawn_rows(draw_mask(all, share, draw, options), tokens);
}

at::Tensor seeded_dropout(const at::Tensor& x, double share, uint64_t draw,
                          const DrawnTokens& tokens) {
  if (share == 0) return x;
  return Dropout::apply(x, share, static_cast<int64_t>(draw), tokens.flat());
}

}  // namespace tessera
