#include "worker/model/fused_block.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/kernels/stand_in.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// x + o(attended): what the MLP adds to.
at::Tensor mixed_stream(const at::Tensor& x_TD, const at::Tensor& attended, const Projection& o) {
  at::Tensor mixed_TD = at::empty_like(x_TD);
  o.forward(mixed_TD, attended, /*residual=*/x_TD);
  return mixed_TD;
}

struct Attended {
  at::Tensor values, lse;  // as attend_out has them
};

Attended attended_to(const at::Tensor& x_TD, const SelfAttention& a, const Stream& stream) {
  const Attended made{at::empty({x_TD.size(0), a.num_heads * a.head_dim}, x_TD.options()),
                      at::empty({x_TD.size(0) * a.num_heads}, x_TD.options())};
  attend_out(made.values, made.lse, x_TD, a, stream);
  return made;
}

struct RunBlock : Function<RunBlock> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_TD, int64_t block_pointer,
                            int64_t stream_pointer, bool keeps_attended) {
    const auto& block = *reinterpret_cast<const FusedBlock*>(block_pointer);
    const auto& stream = *reinterpret_cast<const Stream*>(stream_pointer);
    const SelfAttention& a = block.attention;
    Attended attended = attended_to(x_TD, a, stream);
    const at::Tensor y_TD = mixed_stream(x_TD, attended.values, a.o);
    if (!keeps_attended) attended = {};
    add_mlp_(y_TD, *block.mlp_norm, a.eps, block.mlp, stream.mlp_tile_tokens);
    ctx->save_for_backward({x_TD, attended.values, attended.lse});
    ctx->saved_data["block"] = block_pointer;
    ctx->saved_data["stream"] = stream_pointer;
    return y_TD;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& block = *reinterpret_cast<const FusedBlock*>(ctx->saved_data["block"].toInt());
    const auto& stream = *reinterpret_cast<const Stream*>(ctx->saved_data["stream"].toInt());
    const SelfAttention& a = block.attention;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x_TD = saved[0];
    const Attended attended =
        saved[1].defined() ? Attended{saved[1], saved[2]} : attended_to(x_TD, a, stream);
    at::Tensor mixed_TD = mixed_stream(x_TD, attended.values, a.o);
    const at::Tensor grad_TD = at::empty_like(x_TD);
    mlp_backward_out(grad_TD, grads[0].contiguous(), mixed_TD, *block.mlp_norm, a.eps, block.mlp,
                     stream.mlp_tile_tokens);
    mixed_TD.reset();
    attention_backward_(grad_TD, x_TD, attended.values, attended.lse, a, stream);
    return {grad_TD, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

bool can_run_fused(const at::Tensor& x_TD, const std::vector<Parameter*>& parameters,
                   const std::vector<Linear*>& linears, const Stream& stream) {
  const auto has_place = [](const Parameter* parameter) {
    return !parameter->trainable || parameter->gradient_sink != nullptr;
  };
  const auto is_plain = [&](const Linear* linear) {
    return !linear->adapter || linear->adapter->is_plain(stream);
  };
  return on_cpu(x_TD) && x_TD.scalar_type() == at::kFloat &&
         std::ranges::all_of(parameters, has_place) && std::ranges::all_of(linears, is_plain);
}

at::Tensor fused_block(const at::Tensor& x_TD, const FusedBlock& block, const Stream& stream,
                       RecomputePolicy policy) {
  return RunBlock::apply(x_TD.contiguous(), reinterpret_cast<int64_t>(&block),
                         reinterpret_cast<int64_t>(&stream),
                         /*keeps_attended=*/policy == RecomputePolicy::kAttention);
}

}  // namespace tessera
