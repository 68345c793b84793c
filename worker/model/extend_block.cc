#include "worker/model/extend_block.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "worker/kernels/row_product.h"
#include "worker/kernels/tensor_ops.h"
#include "worker/model/attention_cache.h"

namespace tessera {
namespace {

// Columns [begin, begin + count * width) of x, as made, by heads of `width`: one operator, where
// narrow() and unflatten() are four.
at::Tensor heads_of(const at::Tensor& x, int64_t begin, int64_t count, int64_t width) {
  return x.as_strided({x.size(0), count, width}, {x.size(1), width, 1}, begin);
}

at::Tensor columns_of(const at::Tensor& x, int64_t begin, int64_t width) {
  return x.as_strided({x.size(0), width}, {x.size(1), 1}, begin);
}

void add_attention_(const at::Tensor& y_TD, const at::Tensor& normed_TD, const SelfAttention& a,
                    int64_t layer, const Stream& stream) {
  const at::Tensor qkv = at::empty({y_TD.size(0), a.qkv.width()}, y_TD.options());
  a.qkv.forward_by_row(qkv, normed_TD);
  const int64_t k = a.num_heads * a.head_dim, v = k + a.num_kv_heads * a.head_dim;
  const at::Tensor q_TNH = heads_of(qkv, 0, a.num_heads, a.head_dim),
                   k_TKH = heads_of(qkv, k, a.num_kv_heads, a.head_dim),
                   v_TKH = heads_of(qkv, v, a.num_kv_heads, a.head_dim);
  if (a.q_norm != nullptr) {
    rms_norm_out(q_TNH, q_TNH, a.q_norm->value, a.eps);
    rms_norm_out(k_TKH, k_TKH, a.k_norm->value, a.eps);
  }
  rotate_out(q_TNH, q_TNH, stream.cos_TH, stream.sin_TH, /*back=*/false);
  rotate_out(k_TKH, k_TKH, stream.cos_TH, stream.sin_TH, /*back=*/false);
  const at::Tensor out_TNH = stream.cache->attend(layer, q_TNH, k_TKH, v_TKH, a.window);
  a.o.forward_by_row(y_TD, out_TNH.view({out_TNH.size(0), k}), /*add=*/true);
}

void add_mlp_by_row_(const at::Tensor& y_TD, const at::Tensor& normed_TD, const GatedMlp& mlp) {
  const at::Tensor gate_up = at::empty({y_TD.size(0), mlp.gate_up.width()}, y_TD.options());
  mlp.gate_up.forward_by_row(gate_up, normed_TD);
  const int64_t half = gate_up.size(1) / 2;
  const at::Tensor gate_TF = columns_of(gate_up, 0, half), up_TF = columns_of(gate_up, half, half);
  swiglu_out(gate_TF, gate_TF, up_TF);
  mlp.down.forward_by_row(y_TD, gate_TF, /*add=*/true);
}

}  // namespace

bool can_extend_fused(const at::Tensor& x_TD, const std::vector<Linear*>& linears,
                      const Stream& stream) {
  const auto is_plain = [&](const Linear* linear) {
    return !linear->adapter || linear->adapter->is_plain(stream);
  };
  return stream.cache != nullptr && has_row_products(x_TD) &&
         std::ranges::all_of(linears, is_plain);
}

at::Tensor extend_block(const at::Tensor& x_TD, const FusedBlock& block, int64_t layer,
                        const Stream& stream) {
  const at::Tensor y_TD = x_TD.clone();
  const at::Tensor normed_TD = at::empty_like(x_TD);
  const SelfAttention& a = block.attention;
  rms_norm_out(normed_TD, y_TD, a.norm->value, a.eps);
  add_attention_(y_TD, normed_TD, a, layer, stream);
  rms_norm_out(normed_TD, y_TD, block.mlp_norm->value, a.eps);
  add_mlp_by_row_(y_TD, normed_TD, block.mlp);
  return y_TD;
}

}  // namespace tessera
