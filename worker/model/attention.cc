#include "worker/model/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "worker/kernels/causal_attention.h"
#include "worker/kernels/stand_in.h"
#include "worker/model/attention_dropout.h"
#include "worker/model/attention_pieces.h"
#include "worker/model/context_attention.h"
#include "worker/model/flash_attention.h"
#include "worker/model/kept_attention.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// None for a square piece that the window does not touch, which kernels know as causal. Pieces of
// one shape share a mask, and most have the shape of the one before.
class MaskOf {
 public:
  MaskOf(int64_t window, const at::TensorOptions& options) : window_(window), options_(options) {}
  std::optional<at::Tensor> operator()(const AttentionPiece& piece) {
    if (piece.is_square() && (window_ == 0 || piece.num_queries <= window_)) return std::nullopt;
    if (!mask_.defined() || mask_.size(0) != piece.num_queries || mask_.size(1) != piece.num_keys)
      mask_ = piece_mask(piece, window_, options_);
    return mask_;
  }

 private:
  int64_t window_;
  at::TensorOptions options_;
  at::Tensor mask_;
};

// Our own attention, in float32.
struct CausalAttention : Function<CausalAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                            const at::Tensor& v_TKH, std::vector<int64_t> cu_seqlens,
                            int64_t window, int64_t kept) {
    const AttentionOutputs outputs = kept_or_run(kept, [&] {
      const AttentionOutputs made{
          at::empty_like(q_TNH, q_TNH.options(), at::MemoryFormat::Contiguous),
          at::empty({q_TNH.size(0) * q_TNH.size(1)}, q_TNH.options())};
      causal_attention_out(made.out_TNH, made.lse, q_TNH, k_TKH, v_TKH, cu_seqlens, window);
      return made;
    });
    ctx->save_for_backward({q_TNH, k_TKH, v_TKH, outputs.out_TNH, outputs.lse});
    ctx->saved_data["cu_seqlens"] = std::move(cu_seqlens);
    ctx->saved_data["window"] = window;
    return outputs.out_TNH;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const auto make_like = [](const at::Tensor& x) {
      return at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
    };
    const AttentionGradients made{make_like(q), make_like(k), make_like(v)};
    causal_attention_backward_out(made, grads[0].contiguous(), q, k, v, out, lse,
                                  ctx->saved_data["cu_seqlens"].toIntVector(),
                                  ctx->saved_data["window"].toInt());
    return {made.q_TNH, made.k_TKH, made.v_TKH, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// ATen's CPU flash kernel for the other types, once a piece: no work across boundaries. The
// log-sum-exp of all pieces is kept in one flat tensor, a contiguous [N, num_queries] a piece, as
// its backward wants it.
struct FlashAttention : Function<FlashAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                            const at::Tensor& v_TKH, std::vector<int64_t> cu_seqlens,
                            int64_t window, int64_t kept) {
    const AttentionOutputs outputs =
        kept_or_run(kept, [&] { return run(q_TNH, k_TKH, v_TKH, cu_seqlens, window); });
    ctx->save_for_backward({q_TNH, k_TKH, v_TKH, outputs.out_TNH, outputs.lse});
    ctx->saved_data["cu_seqlens"] = std::move(cu_seqlens);
    ctx->saved_data["window"] = window;
    return outputs.out_TNH;
  }

  static AttentionOutputs run(const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                              const at::Tensor& v_TKH, const std::vector<int64_t>& cu_seqlens,
                              int64_t window) {
    const int64_t num_heads = q_TNH.size(1);
    at::Tensor out_TNH = at::empty_like(q_TNH, q_TNH.options(), at::MemoryFormat::Contiguous);
    at::Tensor lse = at::empty({q_TNH.size(0) * num_heads}, q_TNH.options().dtype(at::kFloat));
    MaskOf mask_of(window, lse.options());
    for (const AttentionPiece& piece : attention_pieces(cu_seqlens, window, /*block=*/0)) {
      const std::optional<at::Tensor> mask = mask_of(piece);
      auto [out, piece_lse] = at::_scaled_dot_product_flash_attention_for_cpu(
          token_view(q_TNH, piece.query_begin, piece.num_queries),
          token_view(k_TKH, piece.key_begin, piece.num_keys),
          token_view(v_TKH, piece.key_begin, piece.num_keys), /*dropout_p=*/0.0,
          /*is_causal=*/!mask, mask);
      token_view(out_TNH, piece.query_begin, piece.num_queries).copy_(out);
      lse_view(lse, piece, num_heads).copy_(piece_lse);
    }
    return {out_TNH, lse};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const std::vector<int64_t> cu_seqlens = ctx->saved_data["cu_seqlens"].toIntVector();
    const int64_t window = ctx->saved_data["window"].toInt();
    const int64_t num_heads = q.size(1);
    const at::Tensor grad_out = grads[0].contiguous();
    at::Tensor grad_q = at::empty_like(q, q.options(), at::MemoryFormat::Contiguous);
    at::Tensor grad_k = at::zeros_like(k, k.options(), at::MemoryFormat::Contiguous);
    at::Tensor grad_v = at::zeros_like(v, v.options(), at::MemoryFormat::Contiguous);
    MaskOf mask_of(window, lse.options());
    for (const AttentionPiece& piece : attention_pieces(cu_seqlens, window, /*block=*/0)) {
      const std::optional<at::Tensor> mask = mask_of(piece);
      const auto queries = [&](const at::Tensor& x) {
        return token_view(x, piece.query_begin, piece.num_queries);
      };
      const auto keys = [&](const at::Tensor& x) {
        return token_view(x, piece.key_begin, piece.num_keys);
      };
      auto [piece_q, piece_k, piece_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          queries(grad_out), queries(q), keys(k), keys(v), queries(out),
          lse_view(lse, piece, num_heads), /*dropout_p=*/0.0, /*is_causal=*/!mask, mask);
      queries(grad_q).copy_(piece_q);
      keys(grad_k).add_(piece_k);  // pieces of one document share keys
      keys(grad_v).add_(piece_v);
    }
    return {grad_q, grad_k, grad_v, at::Tensor(), at::Tensor(), at::Tensor()};
  }

  static at::Tensor lse_view(const at::Tensor& lse, const AttentionPiece& piece,
                             int64_t num_heads) {
    return lse.narrow(0, piece.query_begin * num_heads, piece.num_queries * num_heads)
        .view({1, num_heads, piece.num_queries});
  }
};

// Any other device and type: ATen picks the kernel, once a piece. It keeps nothing for a rerun.
at::Tensor attend_by_dispatch(const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                              const at::Tensor& v_TKH, const Documents& documents, int64_t window) {
  std::vector<at::Tensor> outs;
  MaskOf mask_of(window, q_TNH.options().requires_grad(false));
  for (const AttentionPiece& piece : attention_pieces(documents.cu_seqlens, window, /*block=*/0)) {
    const std::optional<at::Tensor> mask = mask_of(piece);
    const at::Tensor out = at::scaled_dot_product_attention(
        token_view(q_TNH, piece.query_begin, piece.num_queries),
        token_view(k_TKH, piece.key_begin, piece.num_keys),
        token_view(v_TKH, piece.key_begin, piece.num_keys), mask, /*dropout_p=*/0.0,
        /*is_causal=*/!mask, /*scale=*/std::nullopt,
        /*enable_gqa=*/q_TNH.size(1) != k_TKH.size(1));
    outs.push_back(out.squeeze(0).transpose(0, 1));
  }
  return at::cat(outs, 0);
}

}  // namespace

at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                  const Documents& documents, const AttentionOptions& options) {
  if (documents.part) return attend_over_context(q_TNH, k_TKH, v_TKH, documents, options);
  if (options.dropout > 0) return attend_with_dropout(q_TNH, k_TKH, v_TKH, documents, options);
  const auto kept = reinterpret_cast<int64_t>(options.kept);
  if (on_cpu(q_TNH) && q_TNH.scalar_type() == at::kFloat)
    return CausalAttention::apply(q_TNH, k_TKH, v_TKH, documents.cu_seqlens, options.window, kept);
  if (on_cpu(q_TNH))
    return FlashAttention::apply(q_TNH, k_TKH, v_TKH, documents.cu_seqlens, options.window, kept);
  if (has_flash_attention(q_TNH))
    return flash_attention(q_TNH, k_TKH, v_TKH, documents.cu_seqlens, options);
  return attend_by_dispatch(q_TNH, k_TKH, v_TKH, documents, options.window);
}

}  // namespace tessera
