// Attention by its definition, in double precision, with its gradients.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tessera::testing {

struct AttentionCase {
  std::vector<int64_t> cu_seqlens;
  int64_t window;
  int64_t heads, kv_heads, head_dim;
  std::vector<int64_t> cuts;  // of the stream into pieces

  friend std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
    out << c.cu_seqlens.back() << " tokens in " << c.cu_seqlens.size() - 1 << " documents, window "
        << c.window << ", heads " << c.heads << "/" << c.kv_heads << ", pieces";
    for (const int64_t cut : c.cuts) out << " " << cut;
    return out;
  }
};

inline std::vector<AttentionCase> attention_cases() {
  return {
      {{0, 96}, 0, 2, 2, 8, {0, 12, 24, 36, 48, 60, 72, 84, 96}},
      {{0, 600}, 0, 4, 2, 16, {0, 300, 600}},
      {{0, 5, 6, 40, 41, 100, 130}, 0, 4, 1, 8, {0, 33, 65, 98, 130}},
      {{0, 96}, 10, 2, 1, 8, {0, 16, 32, 48, 64, 80, 96}},
      {{0, 50, 200}, 33, 4, 2, 8, {0, 50, 100, 150, 200}},
      {{0, 7, 190, 200}, 1, 2, 2, 8, {0, 100, 200}},
      {{0, 400, 700}, 300, 2, 1, 8, {0, 350, 700}},
      {{0, 64, 128}, 0, 2, 2, 8, {0, 64, 128}},
  };
}

inline bool sees(const std::vector<int64_t>& cu_seqlens, int64_t window, int64_t query,
                 int64_t key) {
  if (key > query || (window > 0 && query - key >= window)) return false;
  for (const int64_t bound : cu_seqlens) {
    if (key < bound && bound <= query) return false;
  }
  return true;
}

// Random inputs in float32 (rounded to `dtype` first), and in float64 what attention makes of them.
struct PlainAttention {
  at::Tensor q, k, v, grad_out;
  at::Tensor out, lse, grad_q, grad_k, grad_v;  // lse [N, T]

  explicit PlainAttention(const AttentionCase& c, at::ScalarType dtype = at::kFloat) {
    const int64_t tokens = c.cu_seqlens.back();
    const auto draw = [&](int64_t heads) {
      return at::randn({tokens, heads, c.head_dim}).to(dtype).to(at::kFloat);
    };
    q = draw(c.heads), k = draw(c.kv_heads), v = draw(c.kv_heads), grad_out = draw(c.heads);
    at::Tensor hidden = at::full({tokens, tokens}, -INFINITY, at::kDouble);
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t j = 0; j <= i; ++j)
        if (sees(c.cu_seqlens, c.window, i, j)) hidden.data_ptr<double>()[i * tokens + j] = 0;
    }
    const int64_t group = c.heads / c.kv_heads;
    const double scale = 1 / std::sqrt(double(c.head_dim));
    const at::Tensor wide_q = q.to(at::kDouble), wide_grad = grad_out.to(at::kDouble);
    const at::Tensor wide_k = k.to(at::kDouble).repeat_interleave(group, 1);
    const at::Tensor wide_v = v.to(at::kDouble).repeat_interleave(group, 1);
    const at::Tensor scores = at::einsum("inh,jnh->nij", {wide_q, wide_k}) * scale + hidden;
    lse = scores.logsumexp(-1);
    const at::Tensor p = (scores - lse.unsqueeze(-1)).exp();
    out = at::einsum("nij,jnh->inh", {p, wide_v});
    const at::Tensor grad_p = at::einsum("inh,jnh->nij", {wide_grad, wide_v});
    const at::Tensor mean = (grad_p * p).sum(-1, /*keepdim=*/true);
    const at::Tensor grad_scores = p * (grad_p - mean) * scale;
    const auto of_kv_heads = [&](const at::Tensor& x) {
      return x.view({tokens, c.kv_heads, group, c.head_dim}).sum(2);
    };
    grad_q = at::einsum("nij,jnh->inh", {grad_scores, wide_k});
    grad_k = of_kv_heads(at::einsum("nij,inh->jnh", {grad_scores, wide_q}).contiguous());
    grad_v = of_kv_heads(at::einsum("nij,inh->jnh", {p, wide_grad}).contiguous());
  }
};

// The largest difference is at most `tolerance` of the largest value.
inline void expect_close(const at::Tensor& ours, const at::Tensor& plain, double tolerance) {
  ASSERT_EQ(ours.sizes(), plain.sizes());
  const double difference = (ours.to(at::kDouble) - plain).abs().max().item<double>();
  EXPECT_LE(difference, tolerance * std::max(1.0, plain.abs().max().item<double>()));
}

}  // namespace tessera::testing
