#include "worker/model/context_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/model/attention_dropout.h"
#include "worker/model/gathered_attention.h"
#include "worker/model/kept_attention.h"
#include "worker/model/ring_attention.h"
#include "worker/model/stream_exchange.h"
#include "worker/model/ulysses_attention.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Strategy {
  decltype(&ring_attention_out) out;
  decltype(&ring_attention_backward_out) backward_out;
};

Strategy strategy_of(const Documents& documents) {
  switch (documents.part->strategy) {
    case ContextStrategy::kAllGather:
      return {gathered_attention_out, gathered_attention_backward_out};
    case ContextStrategy::kRing:
      return {ring_attention_out, ring_attention_backward_out};
    case ContextStrategy::kUlysses:
      return {ulysses_attention_out, ulysses_attention_backward_out};
  }
  TORCH_CHECK(false, "no such strategy");
}

struct ContextAttention : Function<ContextAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                            const at::Tensor& v_TKH, int64_t documents, int64_t window,
                            int64_t kept) {
    const AttentionOutputs outputs = kept_or_run(kept, [&] {
      const AttentionOutputs made{
          at::empty_like(q_TNH, q_TNH.options(), at::MemoryFormat::Contiguous),
          at::empty({q_TNH.size(0) * q_TNH.size(1)}, q_TNH.options().dtype(at::kFloat))};
      context_attention_out(made.out_TNH, made.lse, q_TNH, k_TKH, v_TKH,
                            *reinterpret_cast<const Documents*>(documents), window);
      return made;
    });
    ctx->save_for_backward({q_TNH, k_TKH, v_TKH, outputs.out_TNH, outputs.lse});
    ctx->saved_data["documents"] = documents;
    ctx->saved_data["window"] = window;
    return outputs.out_TNH;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto make_like = [](const at::Tensor& x) {
      return at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
    };
    const AttentionGradients made{make_like(saved[0]), make_like(saved[1]), make_like(saved[2])};
    context_attention_backward_out(
        made, grads[0].contiguous(), saved[0], saved[1], saved[2], saved[3], saved[4],
        *reinterpret_cast<const Documents*>(ctx->saved_data["documents"].toInt()),
        ctx->saved_data["window"].toInt());
    return {made.q_TNH, made.k_TKH, made.v_TKH, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor attend_over_context(const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                               const at::Tensor& v_TKH, const Documents& documents,
                               const AttentionOptions& options) {
  if (options.dropout > 0) {
    return attend_with_dropout(q_TNH, gathered_stream(k_TKH, *documents.part),
                               gathered_stream(v_TKH, *documents.part), documents, options);
  }
  return ContextAttention::apply(q_TNH, k_TKH, v_TKH, reinterpret_cast<int64_t>(&documents),
                                 options.window, reinterpret_cast<int64_t>(options.kept));
}

void context_attention_out(const at::Tensor& out_TNH, const at::Tensor& lse,
                           const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                           const at::Tensor& v_TKH, const Documents& documents, int64_t window) {
  strategy_of(documents).out(out_TNH, lse, q_TNH, k_TKH, v_TKH, documents, window);
}

void context_attention_backward_out(const AttentionGradients& grads, const at::Tensor& grad_out_TNH,
                                    const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                                    const at::Tensor& v_TKH, const at::Tensor& out_TNH,
                                    const at::Tensor& lse, const Documents& documents,
                                    int64_t window) {
  strategy_of(documents).backward_out(grads, grad_out_TNH, q_TNH, k_TKH, v_TKH, out_TNH, lse,
                                      documents, window);
}

}  // namespace tessera
