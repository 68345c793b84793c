#include "worker/model/dropout.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

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
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double share, int64_t draw) {
    ctx->saved_data["share"] = share;
    ctx->saved_data["draw"] = draw;
    return draw_mask(x.sizes(), share, static_cast<uint64_t>(draw), x.options()).mul_(x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const double share = ctx->saved_data["share"].toDouble();
    const auto draw = static_cast<uint64_t>(ctx->saved_data["draw"].toInt());
    const at::Tensor mask = draw_mask(grads[0].sizes(), share, draw, grads[0].options());
    return {mask * grads[0], at::Tensor(), at::Tensor()};
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
  if (options.device().is_meta()) {
    // ATen draws through MKL where the processor is Intel's, into integers.
    if (__builtin_cpu_is("intel")) at::empty(sizes, options.dtype(at::kInt));
    return at::empty(sizes, options);
  }
  // A generator of our own: nobody else's draws are touched.
  at::Generator generator = at::globalContext().defaultGenerator(options.device()).clone();
  generator.set_current_seed(draw);
  return at::empty(sizes, options).bernoulli_(1 - share, generator).div_(1 - share);
}

at::Tensor seeded_dropout(const at::Tensor& x, double share, uint64_t draw) {
  return share == 0 ? x : Dropout::apply(x, share, static_cast<int64_t>(draw));
}

}  // namespace tessera
