#include "worker/parallel/recompute.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/model/kept_attention.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The parameters are no inputs: the backward within backward adds to their leaves directly.
struct Recompute : Function<Recompute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t layer,
                            int64_t stream_pointer, bool keeps_attention) {
    const auto& stream = *reinterpret_cast<const Stream*>(stream_pointer);
    AttentionOutputs kept;
    Stream own = stream;
    if (keeps_attention) own.kept_attention = &kept;
    at::Tensor y = reinterpret_cast<Layer*>(layer)->forward(x, own);
    ctx->save_for_backward({x, kept.out_TNH, kept.lse});
    ctx->saved_data["layer"] = layer;
    ctx->saved_data["stream"] = stream_pointer;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto* layer = reinterpret_cast<Layer*>(ctx->saved_data["layer"].toInt());
    const auto& stream = *reinterpret_cast<const Stream*>(ctx->saved_data["stream"].toInt());
    const auto saved = ctx->get_saved_variables();
    at::Tensor x = saved[0].detach().requires_grad_(true);
    AttentionOutputs kept{saved[1], saved[2]};
    Stream own = stream;
    own.is_rerun = true;
    if (kept.out_TNH.defined()) own.kept_attention = &kept;
    {
      const c10::AutoGradMode with_grad(true);
      const at::Tensor y = layer->forward(x, own);
      torch::autograd::backward({y}, {grads[0]});
    }
    return {x.grad(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

// A function of autograd runs backward only where an input needs a gradient, and the parameters are
// none of its inputs: the stream stands in for them where nothing below it is trained.
at::Tensor RecomputedLayer::forward(const at::Tensor& x, const Stream& stream) {
  // Generation has no backward, and its attention is none that a lean forward knows.
  if (stream.cache != nullptr) return inner_->forward(x, stream);
  at::Tensor input = x;
  if (c10::GradMode::is_enabled() && !x.requires_grad() &&
      std::ranges::any_of(inner_->parameters(), &Parameter::trainable)) {
    input = x.detach().requires_grad_(true);
  }
  if (std::optional<at::Tensor> y = inner_->lean_forward(input, stream, policy_)) return *y;
  return Recompute::apply(input, reinterpret_cast<int64_t>(inner_.get()),
                          reinterpret_cast<int64_t>(&stream),
                          /*keeps_attention=*/policy_ == RecomputePolicy::kAttention);
}

}  // namespace tessera
