#include "worker/model/attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Tokens [begin, begin + length) of [T, N, H] as the [1, N, length, H] that the kernels take.
at::Tensor document_view(const at::Tensor& x_TNH, int64_t begin, int64_t length) {
  return x_TNH.narrow(0, begin, length).transpose(0, 1).unsqueeze(0);
}

// ATen's CPU flash kernel, once a document: no mask, no work across boundaries. The log-sum-exp of
// all documents is kept in one flat tensor, a contiguous [N, length] a document, as its backward
// wants it.
struct CpuAttention : Function<CpuAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                            const at::Tensor& v_TKH, std::vector<int64_t> cu_seqlens) {
    const int64_t num_heads = q_TNH.size(1);
    at::Tensor out_TNH = at::empty_like(q_TNH, q_TNH.options(), at::MemoryFormat::Contiguous);
    at::Tensor lse = at::empty({q_TNH.size(0) * num_heads}, q_TNH.options().dtype(at::kFloat));
    for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
      const int64_t begin = cu_seqlens[s], length = cu_seqlens[s + 1] - begin;
      auto [out, document_lse] = at::_scaled_dot_product_flash_attention_for_cpu(
          document_view(q_TNH, begin, length), document_view(k_TKH, begin, length),
          document_view(v_TKH, begin, length), /*dropout_p=*/0.0, /*is_causal=*/true);
      document_view(out_TNH, begin, length).copy_(out);
      lse.narrow(0, begin * num_heads, length * num_heads)
          .view({1, num_heads, length})
          .copy_(document_lse);
    }
    ctx->save_for_backward({q_TNH, k_TKH, v_TKH, out_TNH, lse});
    ctx->saved_data["cu_seqlens"] = std::move(cu_seqlens);
    return out_TNH;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const std::vector<int64_t> cu_seqlens = ctx->saved_data["cu_seqlens"].toIntVector();
    const int64_t num_heads = q.size(1);
    const at::Tensor grad_out = grads[0].contiguous();
    at::Tensor grad_q = at::empty_like(q, q.options(), at::MemoryFormat::Contiguous);
    at::Tensor grad_k = at::empty_like(k, k.options(), at::MemoryFormat::Contiguous);
    at::Tensor grad_v = at::empty_like(v, v.options(), at::MemoryFormat::Contiguous);
    for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
      const int64_t begin = cu_seqlens[s], length = cu_seqlens[s + 1] - begin;
      auto [document_q, document_k, document_v] =
          at::_scaled_dot_product_flash_attention_for_cpu_backward(
              document_view(grad_out, begin, length), document_view(q, begin, length),
              document_view(k, begin, length), document_view(v, begin, length),
              document_view(out, begin, length),
              lse.narrow(0, begin * num_heads, length * num_heads).view({1, num_heads, length}),
              /*dropout_p=*/0.0, /*is_causal=*/true);
      document_view(grad_q, begin, length).copy_(document_q);
      document_view(grad_k, begin, length).copy_(document_k);
      document_view(grad_v, begin, length).copy_(document_v);
    }
    return {grad_q, grad_k, grad_v, at::Tensor()};
  }
};

// Any other device: ATen picks the kernel, once a document.
at::Tensor attend_by_dispatch(const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                              const at::Tensor& v_TKH, const Documents& documents) {
  std::vector<at::Tensor> outs;
  outs.reserve(documents.num_documents());
  for (int64_t s = 0; s < documents.num_documents(); ++s) {
    const int64_t begin = documents.cu_seqlens[s], length = documents.cu_seqlens[s + 1] - begin;
    const at::Tensor out = at::scaled_dot_product_attention(
        document_view(q_TNH, begin, length), document_view(k_TKH, begin, length),
        document_view(v_TKH, begin, length), /*attn_mask=*/{}, /*dropout_p=*/0.0,
        /*is_causal=*/true,
        /*scale=*/std::nullopt, /*enable_gqa=*/q_TNH.size(1) != k_TKH.size(1));
    outs.push_back(out.squeeze(0).transpose(0, 1));
  }
  return at::cat(outs, 0);
}

}  // namespace

at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                  const Documents& documents) {
  if (q_TNH.is_cpu()) return CpuAttention::apply(q_TNH, k_TKH, v_TKH, documents.cu_seqlens);
  return attend_by_dispatch(q_TNH, k_TKH, v_TKH, documents);
}

}  // namespace tessera
